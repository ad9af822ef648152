package erase

import (
	"slices"
	"testing"

	"tidemill.dev/config"
)

// The data that is removed with a key is the data that belongs to it by the access rules. A user
// without access to a key loses nothing, and nothing stays that the receipt reports as removed.
func TestWhatGoesIsWhatBelongs(t *testing.T) {
	c, err := config.Parse("c.yaml", []byte(`version: 1
recipes:
  clean: {when: {type: a}, inputs: {raw: "raw/{key}"}, run: {image: i, command: [c]}, makes: {dataset: "{key}/clean"}}
  both: {when: {type: a}, team: shop, inputs: {a: "raw/shop/{key}", b: "{team}-{recipe}/{key}/of/{key}", c: common/all}, run: {image: i, command: [c]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	owners := config.OwnersOf(c)
	keys := []string{"bot-1", "eu/bot-1", "shop/bot-1", "raw/x", "clean", "x/clean", "of", "a/of/a", "all"}
	for _, key := range keys {
		gone := belongingsOf(c, key).datasets
		if len(gone) != 4 {
			t.Errorf("of %s go %q", key, gone)
		}
		for _, name := range gone {
			if !slices.Contains(owners.Of(name), key) {
				t.Errorf("%s goes with %s, and belongs to %q", name, key, owners.Of(name))
			}
			for _, other := range owners.Of(name) {
				if !slices.Contains(belongingsOf(c, other).datasets, name) {
					t.Errorf("%s belongs to %s, and does not go with it", name, other)
				}
			}
		}
	}
}
