"""What is said to both servers, each script to an empty key-space. A line is one step:

    CMD arg ...        connection A asks and reads one reply (arguments as in a shell; \\xHH in double quotes)
    B: CMD arg ...     another connection does
    B> CMD arg ...     it sends without reading
    B<                 it reads one reply
    B<N                it reads N replies
    B~                 it has nothing to read
    ?CMD ...           the reply is compared as an unordered array
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
        GETSET a new
        GETSET e new
        GETDEL e
        GETDEL e
        MGET a b nokey c
        MSET x 1 y 2
        MSET x 1 y
        MSET x
        MSETNX x 1 z 2
        MSETNX z 1 zz 2
        MSETNX z 1 zz
        GET z
        STRLEN a
        STRLEN nokey
        APPEND a ""
        APPEND a -tail
        APPEND new ""
        EXISTS new
        GETRANGE a 0 2
        GETRANGE a -3 -1
        GETRANGE a -1 -3
        GETRANGE a 5 2
        GETRANGE a 0 -100
        GETRANGE a 100 200
        GETRANGE nokey 0 -1
        GETRANGE a x 1
        GETRANGE a 0 9223372036854775807
        SUBSTR a 1 3
        SETRANGE a 2 XY
        GET a
        SETRANGE fresh 3 x
        GET fresh
        SETRANGE fresh2 3 ""
        EXISTS fresh2
        SETRANGE a -1 x
        SETRANGE a x y
        SETRANGE a 536870911 xx
        SETRANGE a 536870912 x
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
        SET a 2 KEEPTTL
        TTL a
        SET a 3
        TTL a
        PTTL a
        TTL nokey
        PTTL nokey
        SET a 1 EX 0
        SET a 1 EX -1
        SET a 1 PX 0
        SET a 1 EX x
        SET a 1 EX
        SET a 1 EX 10 PX 10
        SET a 1 EX 10 EX 100
        TTL a
        SET a 1 EX 10 KEEPTTL
        SET a 1 KEEPTTL EX 10
        SET a 1 PERSIST
        SET a 1 EX 9223372036854775807
        SET a 1 PX 9223372036854775807
        SET a 1 EXAT 0
        SET a 1 EXAT 1
        GET a
        SET a 1 PXAT 1
        EXISTS a
        SET a 1 EXAT 9999999999
        EXPIRETIME a
        SET a 1 PXAT 9999999999000
        EXPIRETIME a
        SETEX b 100 v
        TTL b
        SETEX b 0 v
        SETEX b x v
        SETEX b -5 v
        PSETEX b 100000 v
        TTL b
        PSETEX b 0 v
        EXPIRE b 50
        TTL b
        EXPIRE nokey 50
        EXPIRE b x
        EXPIRE b 9223372036854775807
        EXPIRE b -9223372036854775808
        PEXPIRE b 9223372036854775807
        EXPIRE b 10 NX
        EXPIRE b 10 GT
        EXPIRE b 100 GT
        TTL b
        EXPIRE b 200 LT
        EXPIRE b 20 LT
        TTL b
        EXPIRE b 20 XX
        EXPIRE b 10 NX XX
        EXPIRE b 10 GT LT
        EXPIRE b 10 BAD
        PERSIST b
        PERSIST b
        PERSIST nokey
        EXPIRE b 10 GT
        EXPIRE b 10 XX
        EXPIRE b 10 LT
        TTL b
        EXPIRE b 0
        EXISTS b
        SET b 1
        PEXPIRE b -1
        EXISTS b
        SET b 1
        EXPIREAT b 1
        EXISTS b
        SET b 1
        EXPIREAT b 9999999999
        EXPIRETIME b
        PEXPIREAT b 9999999999000
        EXPIRETIME b
        EXPIRETIME nokey
        PEXPIRETIME nokey
        SET c 1
        EXPIRETIME c
        GETEX c
        GETEX c EX 100
        TTL c
        GETEX c PERSIST
        TTL c
        GETEX c EX 0
        GETEX c EX x
        GETEX c EX 10 PERSIST
        GETEX c NX
        GETEX c EXAT 1
        EXISTS c
        GETEX nokey EX 10
        GETEX nokey EX 0
        RPUSH l 1
        GETEX l
        EXPIRE l 100
        TTL l
        RPUSH l 2
        TTL l
        SET l 1
        TTL l
        SET e 1 EX 100
        INCR e
        APPEND e 1
        TTL e
        RENAME e f
        TTL f
        GETSET f 1
        TTL f
        SET e 1 EX 100
        MSET e 2
        TTL e
    """,
    "keys": """
        DEL a
        MSET a 1 b 2 c 3
        RPUSH l 1
        EXISTS a a b nokey
        TOUCH a nokey
        TYPE a
        TYPE l
        TYPE nokey
        DBSIZE
        ?KEYS *
        ?KEYS [ab]
        ?KEYS [^a]
        ?KEYS [a-b]?
        KEYS nothing*
        DEL a b nokey
        UNLINK c nokey
        RANDOMKEY
        RENAME l l2
        LRANGE l2 0 -1
        RENAME nokey x
        RENAME l2 l2
        RENAMENX l2 l2
        SET x 1
        RENAMENX l2 x
        RENAMENX l2 y
        RENAMENX nokey y
        RENAME y x
        TYPE x
        OBJECT ENCODING x
        OBJECT ENCODING nokey
        SET i 12
        OBJECT ENCODING i
        SET s text
        OBJECT ENCODING s
        OBJECT REFCOUNT s
        OBJECT NONE s
        OBJECT ENCODING
        MEMORY USAGE nokey
        FLUSHDB
        RANDOMKEY
        DBSIZE
        SET a 1
        FLUSHALL ASYNC
        FLUSHALL SYNC
        FLUSHALL WRONG
        FLUSHALL SYNC SYNC
        DBSIZE
        SCAN 0
        SCAN x
        SCAN 0 COUNT 0
        SCAN 0 COUNT x
        SCAN 0 MATCH
        SCAN 0 NONE x
        SCAN 0 TYPE string
        SCAN
        DEL
        TYPE
        RENAME a
    """,
    "lists": """
        LPUSH l a
        RPUSH l b c
        LPUSH l d e
        LRANGE l 0 -1
        LRANGE l 1 2
        LRANGE l -2 -1
        LRANGE l 5 10
        LRANGE l -100 100
        LRANGE l 3 1
        LRANGE nokey 0 -1
        LRANGE l x 1
        LLEN l
        LLEN nokey
        LINDEX l 0
        LINDEX l -1
        LINDEX l 100
        LINDEX l x
        LINDEX nokey 0
        LINDEX nokey x
        LSET l 0 E
        LSET l -1 C
        LSET l 100 z
        LSET l x z
        LSET nokey 0 z
        LRANGE l 0 -1
        LINSERT l BEFORE b before
        LINSERT l AFTER b after
        LINSERT l AFTER none x
        LINSERT nokey AFTER none x
        LINSERT l NEAR b x
        LRANGE l 0 -1
        RPUSH r x y x z x y x
        LREM r 2 x
        LRANGE r 0 -1
        LREM r -1 y
        LRANGE r 0 -1
        LREM r 0 x
        LREM r 0 none
        LREM nokey 0 x
        LREM r x y
        LRANGE r 0 -1
        LREM r 0 y
        LREM r 0 z
        EXISTS r
        LPOP l
        RPOP l
        LPOP nokey
        LPOP nokey 3
        LPOP l 0
        LPOP l 2
        LPOP l -1
        LPOP l x
        LPOP l 1 2
        RPOP l 100
        LPOP l 0
        EXISTS l
        LPUSHX l x
        RPUSHX l x
        RPUSH l x
        LPUSHX l w v
        RPUSHX l y
        LTRIM l 1 2
        LRANGE l 0 -1
        LTRIM l 5 1
        EXISTS l
        LTRIM nokey 0 1
        LTRIM l x 1
        RPUSH l 1 2 3
        LMOVE l m LEFT RIGHT
        LMOVE l m RIGHT LEFT
        LMOVE l l LEFT RIGHT
        LRANGE m 0 -1
        LMOVE l l LEFT LEFT
        LMOVE m m LEFT RIGHT
        LRANGE m 0 -1
        LMOVE m m RIGHT RIGHT
        LMOVE nokey m LEFT LEFT
        LMOVE l m UP LEFT
        RPOPLPUSH l m
        RPOPLPUSH l m
        RPOPLPUSH m m
        LRANGE m 0 -1
        LPUSH l
    """,
    "wrong types": """
        SET s 1
        RPUSH l 1
        GET l
        GETSET l 1
        GETDEL l
        GETEX l
        SET l 1 GET
        STRLEN l
        APPEND l x
        INCR l
        DECRBY l 2
        GETRANGE l 0 1
        SETRANGE l 0 x
        SETRANGE l 0 ""
        MGET l s
        LPUSH s 1
        LPUSHX s 1
        LPOP s
        LPOP s 0
        LLEN s
        LRANGE s 0 1
        LINDEX s 0
        LINDEX s x
        LSET s 0 x
        LSET s x x
        LINSERT s BEFORE a b
        LREM s 0 x
        LTRIM s 0 1
        LMOVE s l LEFT LEFT
        LMOVE l s LEFT LEFT
        LMOVE nokey s LEFT LEFT
        RPOPLPUSH l s
        BLPOP s 1
        BLPOP nokey s l 1
        BLPOP nokey l s 1
        RPUSH l 1
        BLMOVE l s LEFT LEFT 1
        BRPOPLPUSH s l 1
        TYPE l
        SETNX l 1
        SET l 1
        TYPE l
    """,
    "blocking": """
        RPUSH l 1 2
        BLPOP l 0
        BRPOP none l 1
        BLPOP l 0.01
        BRPOP l 0.01
        BLMOVE l m LEFT LEFT 0.01
        BRPOPLPUSH l m 0.01
        BLPOP l x
        BLPOP l -1
        BLPOP l nan
        BLPOP l ""
        BLPOP l " 1"
        BLPOP l "1 "
        BLPOP 1
        BLMOVE l m LEFT UP 1
        BLMOVE l m LEFT LEFT x
        BLMOVE l m LEFT LEFT
        # the longest wait first; one push serves as many as it brings
        B> BLPOP q 0
        B~
        C> BRPOP p q 0
        C~
        D> BLPOP q p 0
        D~
        RPUSH q 1 2
        B<
        C<
        D~
        LLEN q
        RPUSH p 3
        D<
        # more than are waited for stay
        B> BLPOP q 0
        B~
        LPUSH q a b c
        B<
        LRANGE q 0 -1
        DEL q
        # from one list to another, and on to who waits there
        B> BLMOVE q r LEFT RIGHT 0
        B~
        C> BLPOP r 0
        C~
        RPUSH q moved
        B<
        C<
        EXISTS q r
        # the target is no list: an error, and the element stays
        SET str x
        B> BLMOVE q str LEFT RIGHT 0
        B~
        RPUSH q stays
        B<
        LRANGE q 0 -1
        DEL q
        # a list that comes and goes within a transaction is not seen
        B> BLPOP q 0
        B~
        MULTI
        RPUSH q 1
        DEL q
        EXEC
        B~
        MULTI
        RPUSH q 1
        RPUSH q 2
        EXEC
        B<
        LRANGE q 0 -1
        # a list under a new name
        RPUSH z 9
        B> BLPOP w 0
        B~
        RENAME z w
        B<
        # same key twice, and what was sent ahead
        B> BLPOP t t 0
        B~
        B> PING
        B> LLEN t
        B~
        RPUSH t 1 2
        B<3
        # a string does not count
        B> BLPOP t2 0
        B~
        SET t2 x
        B~
        DEL t2
        RPUSH t2 y
        B<
    """,
    "transactions": """
        EXEC
        DISCARD
        MULTI
        MULTI
        WATCH a
        SET a 1
        INCR a
        GET a
        LPUSH a 1
        EXEC
        MULTI
        EXEC
        MULTI
        NONE
        SET a 2
        EXEC
        GET a
        MULTI
        SET a
        EXEC
        MULTI
        SET a 3
        DISCARD
        GET a
        MULTI
        BLPOP none 0
        BRPOPLPUSH none x 0
        BLMOVE none x LEFT LEFT 0
        UNWATCH
        PING
        EXEC
        MULTI
        RPUSH l 1 2
        BLPOP l 0
        LRANGE l 0 -1
        EXEC
        WATCH a
        B: SET a 9
        MULTI
        GET a
        EXEC
        MULTI
        GET a
        EXEC
        WATCH a
        B: SET a 10
        UNWATCH
        MULTI
        GET a
        EXEC
        WATCH a
        SET a 11
        MULTI
        GET a
        EXEC
        WATCH a b c
        B: SET d 1
        MULTI
        PING
        EXEC
        WATCH nokey
        B: DEL nokey
        MULTI
        PING
        EXEC
        WATCH nokey
        B: SET nokey 1
        MULTI
        PING
        EXEC
        WATCH a
        B: EXPIRE a 100
        MULTI
        PING
        EXEC
        WATCH a
        B: DEL a
        MULTI
        PING
        EXEC
        WATCH l
        B: RPOP l
        MULTI
        PING
        EXEC
        WATCH a b
        B: FLUSHALL
        MULTI
        PING
        EXEC
        SET a 1
        WATCH a
        B: FLUSHALL
        MULTI
        PING
        EXEC
        WATCH a
        DISCARD
        MULTI
        DISCARD
        WATCH
        UNWATCH x
        EXEC x
        MULTI
        SET a 1
        EXEC x
        EXEC
        MULTI
        MULTI x
        EXEC
        MULTI
        DISCARD x
        EXEC
    """,
    "publish and subscribe": """
        PUBLISH c x
        B> SUBSCRIBE c d
        B<2
        B> SUBSCRIBE c
        B<
        PUBLISH c hello
        B<
        PUBLISH d "\\x00bin"
        B<
        C> PSUBSCRIBE c*
        C<
        PUBLISH c both
        B<
        C<
        C> PSUBSCRIBE d* c*
        C<2
        ?PUBSUB CHANNELS
        PUBSUB CHANNELS c*
        PUBSUB NUMSUB c d e
        PUBSUB NUMSUB
        PUBSUB NUMPAT
        PUBSUB NONE
        PUBSUB NUMPAT x
        B: GET a
        B: PING
        B: PING hi
        B> UNSUBSCRIBE d none
        B<2
        B> UNSUBSCRIBE
        B<
        B: GET a
        B> UNSUBSCRIBE
        B<
        B> PUNSUBSCRIBE
        B<
        B> UNSUBSCRIBE x y
        B<2
        C: RESET
        C: GET a
        PUBLISH c nobody
        PUBSUB NUMPAT
        MULTI
        SUBSCRIBE c
        PUBLISH c me
        & EXEC
        PUBLISH c
        SUBSCRIBE
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
        CLIENT REPLY WRONG
        CLIENT REPLY ON
        CLIENT KILL 1.2.3.4:5
        CLIENT KILL ID 0
        CLIENT KILL ID 99999999
        CLIENT KILL ADDR 1.2.3.4:5
        CLIENT KILL TYPE none
        CLIENT KILL WRONG x
        CLIENT LIST TYPE none
        CLIENT LIST WRONG
        CLIENT LIST ID x
        CLIENT LIST ID 99999999
        CLIENT NO-EVICT ON
        CLIENT NO-EVICT x
        HELLO x
        HELLO 1
        WAIT 0 0
        WAIT x 0
        WAIT 0 x
        WAIT 0 -1
        CONFIG GET none
        CONFIG GET save
        CONFIG GET appendonly
        CONFIG SET none 1
        CONFIG GET
        CONFIG SET a
        CONFIG NONE
        COMMAND NONE
        COMMAND INFO none
        MULTI
        RESET
        EXEC
        B> CLIENT REPLY SKIP
        B> SET muted 1
        B> GET muted
        B<
        B> CLIENT REPLY OFF
        B> GET muted
        B> CLIENT REPLY ON
        B<
        B: GET muted
        TIME x
        QUIT
    """,
}
