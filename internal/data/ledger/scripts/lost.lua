-- Marks Redis as incomplete, because the caller has found that a key is lost.
if redis.call('HGET', P .. 'at', 'fill') == fill then lost() end
return 1
