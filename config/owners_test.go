package config

import (
	"fmt"
	"slices"
	"testing"
	"testing/quick"
)

func ownersOf(t *testing.T, text string) (*Config, *Owners) {
	t.Helper()
	c, err := Parse("c.yaml", []byte("version: 1\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return c, OwnersOf(c)
}

const ownersConfig = `recipes:
  clean: {when: {type: a}, inputs: {raw: "raw/{key}"}, run: {image: i, command: [c]}, makes: {dataset: "{key}/clean"}}
  both: {when: {type: a}, team: shop, inputs: {a: "raw/shop/{key}", b: "{team}-{recipe}/{key}/of/{key}", c: common/all}, run: {image: i, command: [c]}, makes: {model: "m/{key}"}}
  all: {key: none, when: {type: a}, inputs: {a: "none/bot-1"}, run: {image: i, command: [c]}, makes: {dataset: reports/all}}
`

func TestWhoseADatasetIs(t *testing.T) {
	_, o := ownersOf(t, ownersConfig)
	for name, want := range map[string][]string{
		"raw/bot-42":           {"bot-42"},
		"raw/eu/bot-42":        {"eu/bot-42"},
		"raw/shop/bot-42":      {"shop/bot-42", "bot-42"}, // both recipes read it
		"bot-42/clean":         {"bot-42"},                // not raw, because no key gives that for clean
		"eu/bot-42/clean":      {"eu/bot-42"},
		"raw/bot-42/clean":     {"raw/bot-42", "bot-42/clean"},
		"shop-both/a/b/of/a/b": {"a/b"},
		"shop-both/a/of/b":     {"b"}, // no key gives this name
		"common/all":           {"all"},
		"reports/all":          {"all"},
		"other/eu/bot-42":      {"bot-42"},
		"bot-42":               {"bot-42"},
		"raw/":                 {""},
		"/clean":               {"clean"},
		"":                     {""},
	} {
		if got := o.Of(name); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := OwnersOf(Default()).Of("a/b"); !slices.Equal(got, []string{"b"}) {
		t.Errorf("without recipes: %q", got)
	}
}

// The name that a template gives for a key belongs to that key, for any key. If a dataset
// belongs to a key, a template gives the dataset's name for it.
func TestOwnersAreWhatTemplatesGive(t *testing.T) {
	c, o := ownersOf(t, ownersConfig)
	var templates []string
	for _, r := range c.Recipes {
		for _, in := range r.Inputs {
			templates = append(templates, in.Dataset)
		}
	}
	fill := func(template, key string) string {
		name, err := Expand(template, func(field string) (string, bool) {
			return map[string]string{"key": key, "recipe": "both", "team": "shop"}[field], true
		})
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	check := func(a, b, n uint8) bool {
		key := []string{"bot", "shop", "a", "raw", "clean", "of", "eu"}[a%7] + []string{"", "/bot", "/clean", "/a/of/a", "-1"}[b%5]
		for _, template := range []string{"raw/{key}", "raw/shop/{key}", "{key}/clean", "{team}-{recipe}/{key}/of/{key}"} {
			name := fill(template, key)
			if !slices.Contains(o.Of(name), key) {
				t.Logf("%s of %s belongs to %q", name, key, o.Of(name))
				return false
			}
			for _, key := range o.Of(name) {
				if !slices.ContainsFunc(append(templates, "{key}/clean"), func(template string) bool { return fill(template, key) == name }) {
					t.Logf("%s is said to belong to %s, and no template gives it", name, key)
					return false
				}
			}
		}
		return true
	}
	if err := quick.Check(check, nil); err != nil {
		t.Error(err)
	}
}

// Thousands of recipes do not make the lookup slow: its cost depends on the length of the name.
func BenchmarkOwners(b *testing.B) {
	c := &Config{}
	for i := range 10_000 {
		c.Recipes = append(c.Recipes, Recipe{Name: fmt.Sprint("r", i), Key: KeySubject, Makes: Makes{Dataset: fmt.Sprintf("d%d/{key}", i)}})
	}
	o := OwnersOf(c)
	for b.Loop() {
		o.Of("d5000/shop/bot-42")
	}
}
