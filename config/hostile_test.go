package config

import (
	"runtime"
	"strings"
	"testing"
)

// hostileSize is a part of the allowed size of a file, so that the race detector is done in
// seconds. The test reads no clock: if a cost grew with the square, the tests' own time limit
// would end it.
const hostileSize = maxFile / 16

// A large file that is made to be costly is read in bounded time and memory.
func TestHostileFiles(t *testing.T) {
	for name, part := range map[string]string{
		"flow lists":    "[",
		"flow maps":     "{a: ",
		"lists":         "- ",
		"complex keys":  "? ",
		"keys":          "a: \n",
		"flow keys":     "x,",
		"anchors":       "&a ",
		"aliases":       "*a,",
		"tags":          "!!a ",
		"documents":     "---\n",
		"one long word": "x",
		"quotes":        "'",
		"double quotes": "\"\\\"",
		"comments":      "#\n",
		"blank lines":   "\n",
		"spaces":        " ",
		"urls":          "a://b:c/",
		"at signs":      "://@",
		"colons":        ":",
		"percent":       "%",
		"block text":    "|\n ",
	} {
		heads := []string{"", "version: 1\nstreams:\n  a: ", "version: 1\ntokens:\n  a: ",
			"version: 1\ntriggers:\n  a:\n    when: ", "version: 1\nschedules:\n  a:\n    keys: ",
			"version: 1\npools:\n  a:\n    nodes: ", "version: 1\nrecipes:\n  a:\n    run:\n      image: a\n      volumes: "}
		if name == "block text" {
			heads = heads[:2] // the search for its line takes seconds and is the same under any key
		}
		for _, head := range heads {
			t.Run(name+" "+head, func(t *testing.T) {
				data := head + strings.Repeat(part, hostileSize/len(part))
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				_, err := Parse("f", []byte(data))
				if strings.Contains(head, "tokens") {
					_, err = ParseAccess("f", []byte(data))
				}
				runtime.ReadMemStats(&after)
				if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 128 {
					t.Errorf("allocated %d MiB: %.200v", grown, err)
				}
				if err != nil && len(err.Error()) > 256<<10 {
					t.Errorf("the error is %d KiB long", len(err.Error())>>10)
				}
			})
		}
	}
}
