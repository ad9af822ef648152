package deliver

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"
)

// newRecorded is what a handler answers, without a network.
func newRecorded(r *http.Request, h http.HandlerFunc) *http.Response {
	w := httptest.NewRecorder()
	h(w, r)
	return w.Result()
}

func TestReadUpTo(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 511, 512, 513, 1024, 1025, 8192, 100_000} {
		for _, length := range []int64{-1, 0, int64(size), 1 << 60} {
			want := bytes.Repeat([]byte{7}, size)
			for name, r := range map[string]io.Reader{"at once": bytes.NewReader(want), "byte by byte": iotest.OneByteReader(bytes.NewReader(want)), "with its end": iotest.DataErrReader(bytes.NewReader(want))} {
				const most = 1025
				got, err := readUpTo(r, most, length)
				if err != nil || !bytes.Equal(got, want[:min(size, most)]) {
					t.Errorf("%s, %d bytes, said to be %d: %d, %v", name, size, length, len(got), err)
				}
			}
		}
	}
	got, err := readUpTo(io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("broken"))), 100, -1)
	if string(got) != "half" || err == nil {
		t.Errorf("%q, %v", got, err)
	}
}

func TestShownIsShortText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("sec", 200)
	for name, body := range map[string]string{
		"nothing":      "",
		"binary":       "\x00\xff\xfe\x80",
		"cut in two":   strings.Repeat("x", maxAnswer-1) + "€",
		"all of it":    strings.Repeat("€", 1000),
		"the secret":   strings.Repeat("secret", 500),
		"half of it":   strings.Repeat("x", maxAnswer-3) + "secret",
		"that shrinks": strings.Repeat("x", 50) + strings.Repeat(long, 9),
		"only invalid": strings.Repeat("\xff", 5000),
	} {
		got := (&answer{body: []byte(body)}).shown(secrets{"secret", long})
		if len(got) > maxAnswer || !utf8.ValidString(got) || strings.Contains(strings.ReplaceAll(got, "[secret]", ""), "sec") || got == "" && body != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Where nothing was cut an end that looks like a secret's beginning is none.
func TestShownKeepsItsEnd(t *testing.T) {
	t.Parallel()
	hidden := secrets{"secret"}
	if got := (&answer{body: []byte("sec")}).shown(hidden); got != "sec" {
		t.Errorf("%q", got)
	}
	if got := (&answer{body: []byte("a sec"), broken: io.ErrUnexpectedEOF}).shown(hidden); got != "a " {
		t.Errorf("%q", got)
	}
}
