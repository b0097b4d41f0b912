"""What firing messages when they are due has in common, whether they wait in a level or in a store."""
