"""The admin client for asyncio and its connections; net/admin/ has the blocking one."""
