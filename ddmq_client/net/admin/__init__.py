"""The blocking admin client and its connections; aio/admin/ has the one for asyncio."""
