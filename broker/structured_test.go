package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestUnmarshalBatch(t *testing.T) {
	event := func(i int, more string) string {
		return fmt.Sprintf(` { "specversion":"1.0","id":"%d","source":"/s","type":"t","a":"1"%s } `, i, more)
	}
	body := "[" + strings.Join([]string{
		event(0, `,"b":"1","c":"1","d":"1","e":"1","f":"1"`), // more extensions than memory was reserved for
		`{"id":"1","specversion":"0.3"}`,
		event(2, `,"data":{"a":["]",{}]}`),
		`null`,
		`["` + "\xff" + `"]`,
		event(5, ""),
	}, ",") + "]\n"
	var ids, faults []string
	var kept []*View
	if err := UnmarshalBatch([]byte(body), 6, func(i int, v *View, err error) {
		v.Extensions = append(v.Extensions, Attribute{"last", fmt.Sprint(i)})
		ids, kept = append(ids, v.ID), append(kept, v)
		if err != nil {
			faults = append(faults, fmt.Sprint(i, " ", err))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(ids, " "); got != "0 1 2   5" {
		t.Errorf("ids are %q", got)
	}
	want := []string{`1 attribute specversion: is "0.3"`, "3 structured event is not a JSON object", "4 structured event is not valid UTF-8"}
	if len(faults) != len(want) {
		t.Fatalf("faults are %q", faults)
	}
	for i := range want {
		if !strings.HasPrefix(faults[i], want[i]) {
			t.Errorf("fault %q; want %q…", faults[i], want[i])
		}
	}
	if string(kept[2].Data) != `{"a":["]",{}]}` {
		t.Errorf("data is %s", kept[2].Data)
	}
	for i, v := range kept {
		if got := v.Extensions[len(v.Extensions)-1].Value; got != fmt.Sprint(i) {
			t.Errorf("event %d has the extension of event %s", i, got)
		}
	}
}

func TestUnmarshalBatchRefusesTheWhole(t *testing.T) {
	for body, want := range map[string]string{
		"":        "batch is not JSON, byte 0",
		"[":       "batch is not JSON, byte 1",
		"[{},":    "batch is not JSON",
		"[{}]x":   "batch is not JSON, byte 5",
		"{}":      "batch is not a JSON array",
		"1":       "batch is not a JSON array",
		"[1,2,3]": "batch has too many events: at most 2 are taken at once",
	} {
		err := UnmarshalBatch([]byte(body), 2, func(int, *View, error) { t.Errorf("%s: an event was read", body) })
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v; want %s…", body, err, want)
		}
		if errors.Is(err, ErrTooMany) != strings.Contains(want, "too many") {
			t.Errorf("%s: %v", body, err)
		}
	}
	for _, body := range []string{"[]", " [ \n] "} {
		if err := UnmarshalBatch([]byte(body), 0, func(int, *View, error) { t.Error("an event out of nothing") }); err != nil {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// elements finds in one pass the same as encoding/json in several.
func FuzzElements(f *testing.F) {
	for _, s := range []string{"", " ", "[", "]", "[]", " [ ] ", "[] x", "[]]", "[,]", "[1,]", "[,1]", "[1 2]", "[1,2]", "[1,2", "[1,2] ,", "[[],{}]",
		`["a,]",{"b":[1,"]"]}, null ]`, `{"a":[1]}`, "null", "1", `"x"`, "[1,2,3,4]", "[1,2,3,4] x", "[1,2,3,4", "[\"\\u12\"]", "[tru]", "[\"\n\"]", "\ufeff[]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 3
		got, err := elements(b, limit)
		var want []json.RawMessage
		bad := json.Unmarshal(b, &want) != nil || want == nil // null is not an array
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
