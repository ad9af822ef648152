package broker

import "time"

// plainTime reports whether s is an RFC 3339 time in UTC as almost every
// publisher writes it: 2006-01-02T15:04:05Z with or without a fraction. It may
// say no to a valid time, a leap day say, which package time then judges, but
// never yes to an invalid one; it costs a fraction of that.
func plainTime(s string) bool {
	const shape = "0000-00-00T00:00:00"
	n := len(s) - 1
	if n < len(shape) || s[n] != 'Z' {
		return false
	}
	if s[4] != '-' || s[7] != '-' || s[10] != 'T' || s[13] != ':' || s[16] != ':' {
		return false
	}
	month, day := pair(s, 5), pair(s, 8)
	return digits(s[:4]) && month-1 < 12 && day-1 < uint(daysOf[month-1]) &&
		pair(s, 11) < 24 && pair(s, 14) < 60 && pair(s, 17) < 60 && fraction(s[len(shape):n])
}

// anyTime reports whether s is an RFC 3339 time at all. Package time lets hours of
// one digit pass, a comma before the fraction and zones a day away, which neither
// our reader nor others' take.
func anyTime(s string) bool {
	var t time.Time
	if !looksLikeTime(s) || s[len("0000-00-00T00:00:00")] == ',' || t.UnmarshalText(raw(s)) != nil {
		return false
	}
	n := len(s)
	return s[n-1] == 'Z' || pair(s, n-5) < 24 && pair(s, n-2) < 60
}

// daysOf each month in a common year.
const daysOf = "\x1f\x1c\x1f\x1e\x1f\x1e\x1f\x1f\x1e\x1f\x1e\x1f"

// pair is the number of two digits, and beyond any that a time can have where
// they are none.
func pair(s string, at int) uint {
	tens, ones := uint(s[at]-'0'), uint(s[at+1]-'0')
	if tens > 9 || ones > 9 {
		return 100
	}
	return tens*10 + ones
}

func fraction(s string) bool {
	return s == "" || len(s) > 1 && s[0] == '.' && digits(s[1:])
}

func digits(s string) bool {
	for i := range len(s) {
		if c := s[i] - '0'; c > 9 {
			return false
		}
	}
	return true
}
