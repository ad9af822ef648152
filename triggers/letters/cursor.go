package letters

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
)

// String is the mark as an opaque text that addresses carry as it is.
func (m mark) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(m.written, 36) + " " + m.id))
}

var errCursor = errors.New("it is no cursor of this list: use one as it was given, whole")

func parseCursor(text string) (*mark, error) {
	if text == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, errCursor
	}
	at, id, ok := strings.Cut(string(b), " ")
	written, err := strconv.ParseInt(at, 36, 64)
	if !ok || err != nil {
		return nil, errCursor
	}
	return &mark{written, id}, nil
}
