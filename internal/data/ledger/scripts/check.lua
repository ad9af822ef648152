-- Checks that Redis has lost nothing. The argument is the least sum.
if whole(ARGV[3]) then return 1 end
return 0
