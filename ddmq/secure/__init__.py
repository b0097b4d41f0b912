"""What `ddmq secure` makes: certificates, and the files of a secured installation."""
