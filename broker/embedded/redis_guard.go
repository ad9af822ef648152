package embedded

import (
	"bytes"
	"crypto/subtle"
	"fmt"
	"strings"
)

// The limits of Redis itself: proto-max-bulk-len, and the items of a command. Before the password
// they are as small as a command with a password allows.
const (
	maxItem        = 512 << 20
	maxItems       = 1 << 20
	maxItemBefore  = 256
	maxItemsBefore = 10
	maxLine        = 32 // kind and number of an item, with the line end
)

// refusal is an answer of Redis after which the connection is closed.
type refusal string

// Error returns the answer without the sign of an error.
func (r refusal) Error() string { return string(r) }

func refusef(format string, args ...any) error {
	return refusal("ERR Protocol error: " + fmt.Sprintf(format, args...))
}

// commandGuard reads the commands of a connection before miniredis does. miniredis panics at a command
// without a name and at an item with a huge length, which would end this whole process. It also
// obeys some commands of a client that has given no password.
type commandGuard struct {
	password string   // password that the client still has to give; empty for none
	items    int      // items of the present command that are still to come
	left     int      // bytes of the present item that are still to come, with its line end
	line     []byte   // beginning of the present line
	words    []string // items of the present command, until the client has given the password
	passed   []byte   // commands for the server, until then
}

// check returns the bytes for the server, or an error before the first bytes that must not reach it.
// Until the client has given the password, these bytes are whole commands.
func (g *commandGuard) check(b []byte) (passed []byte, err error) {
	g.passed = nil
	for rest := b; len(rest) > 0; {
		before := g.password != ""
		n, err := g.take(rest)
		if err != nil {
			return nil, err
		}
		if rest = rest[n:]; before && g.password == "" {
			b = rest // the last command was with those that are passed
		}
	}
	if g.password != "" {
		b = nil
	}
	if g.passed == nil {
		return b, nil
	}
	return append(g.passed, b...), nil
}

// take reads the next part of a command, and returns its length.
func (g *commandGuard) take(b []byte) (n int, err error) {
	if g.left > 0 {
		n = min(g.left, len(b))
		if g.password != "" {
			text := b[:max(0, min(n, g.left-len("\r\n")))]
			g.words[len(g.words)-1] += string(text)
		}
		if g.left -= n; g.left == 0 {
			g.endItem()
		}
		return n, nil
	}
	n = bytes.IndexByte(b, '\n') + 1
	whole := n > 0
	if !whole {
		n = len(b)
	}
	if len(g.line)+n > maxLine {
		return n, refusef("a line is too long; send each command as an array of bulk strings")
	}
	if whole && len(g.line) == 0 { // nearly always
		return n, g.endLine(b[:n])
	}
	if g.line = append(g.line, b[:n]...); whole {
		err = g.endLine(g.line)
		g.line = g.line[:0]
	}
	return n, err
}

// endLine reads the line before a command, *ITEMS, or the line before an item, $BYTES.
func (g *commandGuard) endLine(line []byte) error {
	items, item := maxItems, maxItem
	if g.password != "" {
		items, item = maxItemsBefore, maxItemBefore
	}
	if g.items == 0 {
		n, err := numberAfter('*', line, 1, items)
		g.items, g.words = n, g.words[:0]
		return err
	}
	n, err := numberAfter('$', line, 0, item)
	g.left = n + len("\r\n")
	if g.password != "" {
		g.words = append(g.words, "")
	}
	return err
}

// numberAfter returns the number in a line after its kind.
func numberAfter(kind byte, line []byte, least, most int) (n int, err error) {
	text, ended := bytes.CutSuffix(line, []byte("\r\n"))
	valid := ended && len(text) > 1 && text[0] == kind
	for i := 1; valid && i < len(text) && n <= most; i++ {
		valid = text[i] >= '0' && text[i] <= '9'
		n = n*10 + int(text[i]-'0')
	}
	switch {
	case !valid:
		return 0, refusef("expected '%c' and a number; send each command as an array of bulk strings", kind)
	case n < least || n > most:
		return 0, refusef("the number after '%c' is not from %d to %d", kind, least, most)
	}
	return n, nil
}

// endItem ends an item. Until the client has given the password, the server gets only commands that may
// give it, and PING instead of each other command. miniredis answers PING with NOAUTH.
func (g *commandGuard) endItem() {
	if g.items--; g.items > 0 || g.password == "" {
		return
	}
	name := strings.ToUpper(g.words[0])
	given, ok := passwordIn(name, g.words[1:])
	if !ok && name != "HELLO" && name != "QUIT" {
		g.words = append(g.words[:0], "PING")
	}
	g.passed = appendCommand(g.passed, g.words)
	if ok && subtle.ConstantTimeCompare([]byte(given), []byte(g.password)) == 1 {
		g.password, g.words = "", nil
	}
}

func appendCommand(b []byte, words []string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b
}

// passwordIn returns the password that a command gives: AUTH [USER] PASSWORD, or HELLO VERSION AUTH
// USER PASSWORD with more options.
func passwordIn(name string, args []string) (string, bool) {
	switch {
	case name == "AUTH" && (len(args) == 1 || len(args) == 2):
		return args[len(args)-1], true
	case name == "HELLO" && len(args) >= 4 && strings.EqualFold(args[1], "AUTH"):
		return args[3], true
	}
	return "", false
}
