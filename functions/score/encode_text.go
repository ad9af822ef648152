package score

import "unicode/utf8"

// appendText writes a text as JSON. Labels hardly ever hold anything that cannot
// stand in JSON as it is; what is no UTF-8 becomes U+FFFD.
func appendText(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return appendEscaped(append(dst, s[:i]...), s[i:])
		}
	}
	dst = append(dst, s...)
	return append(dst, '"')
}

// appendEscaped writes the rest of a text and its closing quote.
func appendEscaped(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&0xF])
		default:
			dst = utf8.AppendRune(dst, r) // the error rune for what is none
		}
	}
	return append(dst, '"')
}
