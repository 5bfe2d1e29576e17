#!lua flags=allow-oom
-- stub
return redis.error_reply("ERR fairlock: not yet")
