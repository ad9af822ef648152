package config

import (
	"regexp"
	"strings"
)

const (
	// maxAuthority bounds the look behind each "://", for a hostile text may
	// have very many.
	maxAuthority = 1 << 10

	leakedPassword = "holds a URL with a password; secrets never stand in the config: " +
		"remove the password and give it in a file named by flag or environment, or by basicFile beside a trigger's url"
	leakedKey = "holds a private key; secrets never stand in the config: " +
		"put it into a file and name that file by flag or environment"
	leakedToken = "holds a token; a file holds at most its hash, which `tidemill token new` writes. " +
		"What stood here is no secret any more: remove the token and make a new one"
)

var (
	privateKey = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY`)
	// token is one of ours, or the beginning of one; or a JWT.
	token = regexp.MustCompile(`\btm_[A-Za-z0-9_-]{20,}|\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.`)
)

// secretIn says what secret a text holds, if any that can be told by its shape.
func secretIn(s string) string {
	// Most texts have no such beginning, and there may be very many texts.
	if strings.Contains(s, "-----BEGIN") && privateKey.MatchString(s) {
		return leakedKey
	}
	if (strings.Contains(s, "tm_") || strings.Contains(s, "eyJ")) && token.MatchString(s) {
		return leakedToken
	}
	for rest := s; ; {
		_, after, ok := strings.Cut(rest, "://")
		if !ok {
			return ""
		}
		if hasPassword(after[:min(len(after), maxAuthority)]) {
			return leakedPassword
		}
		rest = after
	}
}

// hasPassword looks at what follows "://". A password with an unescaped slash
// in it ends the authority too early; then what seems a port is no number.
func hasPassword(s string) bool {
	if i := strings.IndexAny(s, " \t\r\n\"'<>"); i >= 0 {
		s = s[:i]
	}
	authority := s
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		authority = s[:i]
	}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		_, password, _ := strings.Cut(authority[:at], ":")
		return password != ""
	}
	_, port, ok := strings.Cut(authority, ":")
	return ok && strings.Contains(s, "@") && !strings.HasPrefix(authority, "[") &&
		strings.Trim(port, "0123456789") != ""
}
