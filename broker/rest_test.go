package broker

import (
	"testing"
	"time"
)

// Who has read all there is rests, and who is behind does not.
func TestRestUntil(t *testing.T) {
	now := time.Unix(1, 0)
	for name, c := range map[string]struct {
		rest    time.Duration
		brought bool
		bytes   int
		want    time.Time
	}{
		"a little":             {time.Second, true, 100, now.Add(time.Second)},
		"nothing":              {time.Second, false, 100, time.Time{}},
		"a lot":                {time.Second, true, little, time.Time{}},
		"nobody wants to rest": {0, true, 100, now},
	} {
		if got := restUntil(now, c.rest, c.brought, c.bytes); !got.Equal(c.want) {
			t.Errorf("%s: it rests until %v, want %v", name, got, c.want)
		}
	}
}
