"""What is said to both servers, each script to an empty key-space. A line is one step:

    CMD arg ...        connection A asks and reads one reply (arguments as in a shell; \\xHH in double quotes)
    B: CMD arg ...     another connection does
    #...               a comment
"""

SCRIPTS = {
    "strings": """
        GET a
        SET a 1
        GET a
        SET a
        SET a 1 2
        SET a 1 NX
        SET a 2 XX
        SET b 2 XX
        SET b 3 NX
        SET a 3 NX XX
        SET a 4 GET
        SET c 4 GET
        SET c 5 NX GET
        SET nokey 5 XX GET
        SETNX a 5
        SETNX d 5
        SET e new
        GETDEL e
        GETDEL e
        MGET a b nokey c
        MSET x 1 y 2
        MSET x 1 y
        MSET x
        STRLEN a
        STRLEN nokey
        APPEND a ""
        APPEND a -tail
        GET a
        APPEND new ""
        EXISTS new
        SET "" empty
        GET ""
        SET bin "a\\x00b\\r\\nc"
        GET bin
        STRLEN bin
    """,
    "counters": """
        INCR n
        INCRBY n 10
        DECR n
        DECRBY n 100
        GET n
        INCRBY n x
        INCRBY n 1.5
        INCRBY n " 1"
        INCRBY n 9223372036854775807
        INCRBY n 9223372036854775807
        DECRBY n -9223372036854775808
        SET t text
        INCR t
        SET s " 1"
        INCR s
        SET s 01
        INCR s
        SET s +1
        INCR s
        SET s -0
        INCR s
        SET s 9223372036854775808
        INCR s
        SET s -9223372036854775808
        DECR s
        INCR s
        SET s ""
        INCR s
        INCR
        INCR a b
    """,
    "expiry": """
        SET a 1 EX 100
        TTL a
        SET a 1 PX 100000
        TTL a
        SET a 3
        TTL a
        TTL nokey
        SET a 1 EX 0
        SET a 1 EX -1
        SET a 1 PX 0
        SET a 1 EX x
        SET a 1 EX
        SET a 1 EX 10 PX 10
        SET a 1 EX 10 EX 100
        TTL a
        SET a 1 EX 9223372036854775807
        SET a 1 PX 9223372036854775807
        SET b v EX 100
        EXPIRE b 50
        TTL b
        EXPIRE nokey 50
        EXPIRE b x
        EXPIRE b 9223372036854775807
        EXPIRE b -9223372036854775808
        EXPIRE b
        PERSIST b
        PERSIST b
        PERSIST nokey
        TTL b
        EXPIRE b 0
        EXISTS b
        SET b 1
        EXPIRE b -1
        EXISTS b
        SET e 1 EX 100
        INCR e
        APPEND e 1
        TTL e
        MSET e 2
        TTL e
    """,
    "keys": """
        DEL a
        MSET a 1 b 2 c 3
        EXISTS a a b nokey
        TYPE a
        TYPE nokey
        DBSIZE
        DEL a b nokey
        FLUSHDB
        DBSIZE
        SET a 1
        FLUSHDB ASYNC
        FLUSHDB SYNC
        FLUSHDB WRONG
        FLUSHDB SYNC SYNC
        DBSIZE
        SCAN 0
        SCAN x
        SCAN 0 COUNT 0
        SCAN 0 COUNT x
        SCAN 0 MATCH
        SCAN 0 NONE x
        SCAN
        DEL
        TYPE
    """,
    "connection": """
        PING
        PING hello
        PING a b
        ECHO hi
        ECHO
        SELECT 0
        SELECT x
        SELECT 99999
        SELECT -1
        NONE
        NONE a b c
        "none\\r\\n" x
        CLIENT GETNAME
        CLIENT SETNAME me
        CLIENT GETNAME
        CLIENT SETNAME "a b"
        CLIENT SETNAME ""
        CLIENT GETNAME
        CLIENT SETNAME
        CLIENT NONE
        HELLO x
        HELLO 1
        COMMAND NONE
        B: SET one 1
        GET one
        QUIT
    """,
}

# Of Redis, and not of this server: each with arguments that Redis takes.
CUT = """
    APPENDX k v|BITCOUNT k|BLPOP l 1|BRPOP l 1|BLMOVE a b LEFT LEFT 1|BRPOPLPUSH a b 1|CONFIG GET maxclients|CONFIG SET save x|DISCARD|EVAL x 0|EXEC|EXPIREAT k 1
    EXPIRETIME k|FLUSHALL|GETEX k|GETRANGE k 0 1|GETSET k v|HSET h f v|KEYS *|LINDEX l 0|LINSERT l BEFORE a b|LLEN l|LMOVE a b LEFT LEFT|LPOP l|LPUSH l v|LPUSHX l v
    LRANGE l 0 1|LREM l 0 v|LSET l 0 v|LTRIM l 0 1|MEMORY USAGE k|MSETNX k v|MULTI|OBJECT ENCODING k|PEXPIRE k 1|PEXPIREAT k 1|PEXPIRETIME k|PSETEX k 1 v|PSUBSCRIBE c
    PTTL k|PUBLISH c m|PUBSUB NUMPAT|PUNSUBSCRIBE c|RANDOMKEY|RENAME a b|RENAMENX a b|RESET|RPOP l|RPOPLPUSH a b|RPUSH l v|RPUSHX l v|SADD s m|SETEX k 1 v|SETRANGE k 0 v
    SUBSCRIBE c|SUBSTR k 0 1|TIME|TOUCH k|UNLINK k|UNSUBSCRIBE c|UNWATCH|WAIT 0 0|WATCH k|XADD s * f v|ZADD z 1 m
""".replace("\n", "|").strip("| ").split("|")
