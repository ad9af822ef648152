package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
)

// elements finds in one pass what encoding/json finds in several.
func FuzzElements(f *testing.F) {
	for _, s := range []string{"", " ", "[", "]", "[]", " [ ] ", "[] x", "[]]", "[,]", "[1,]", "[,1]", "[1 2]", "[1,2]", "[1,2", "[1,2] ,", "[[],{}]",
		`["a,]",{"b":[1,"]"]}, null ]`, `{"a":[1]}`, "null", "1", `"x"`, "[1,2,3,4]", "[1,2,3,4] x", "[1,2,3,4", "[\"\\u12\"]", "[tru]", "[\"\n\"]", "\ufeff[]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 3
		got, err := elements(b, limit)
		var want []json.RawMessage
		bad := json.Unmarshal(b, &want) != nil || want == nil // null is no array
		switch {
		case bad || len(want) > limit:
			if err == nil || errors.Is(err, ErrTooMany) == bad {
				t.Fatalf("%q: %d elements, %v", b, len(got), err)
			}
		case err != nil || len(got) != len(want):
			t.Fatalf("%q: %d elements, want %d, %v", b, len(got), len(want), err)
		default:
			for i := range want {
				if !bytes.Equal(got[i], want[i]) {
					t.Fatalf("%q: element %d is %q, want %q", b, i, got[i], want[i])
				}
			}
		}
	})
}
