package broker

import "testing"

func TestPlacesAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Position{
		"messages/3/17": {Stream: "messages", Partition: 3, Offset: 17}, "a.b/0/0": {Stream: "a.b"},
		"messages/3": {}, "messages/-1/17": {}, "messages/3/-17": {}, "messages/x/17": {}, "Messages!/3/17": {}, "messages/3/17/1": {}, "messages/4294967296/1": {}, "": {},
	} {
		got, ok := ParsePlace(text)
		if got != want || ok != (want.Stream != "") || ok && got.Place() != text {
			t.Errorf("%q is read as %+v, %t", text, got, ok)
		}
	}
}
