package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/quick"
	"unicode/utf8"

	"tidemill.dev"
)

var bot = map[string]string{"key": "bot-42", "odd": "a{key}}{", "empty": "", "data.a.b": "c"} // read only

func valueOf(name string) (string, bool) { v, ok := bot[name]; return v, ok }

func TestExpand(t *testing.T) {
	t.Parallel()
	for template, want := range map[string]string{
		"": "", "plain": "plain", "bots/{key}": "bots/bot-42", "{key}{key}": "bot-42bot-42", "{{key}}": "{key}", "{{{key}}}": "{bot-42}",
		"{odd}!": "a{key}}{!", "<{empty}>": "<>", "ü{data.a.b}ü": "ücü", "}}{{": "}{",
	} {
		if got, err := Expand(template, valueOf); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", template, got, err, want)
		}
	}
	for template, want := range map[string]string{
		"bots/{kye}": "no value for {kye}", "ü{key": "column 2: the { is not closed", "a}": "column 2: a } closes nothing", "{}": "column 1: {} names nothing", "{a{b}}": "column 1: the { is not closed",
	} {
		if got, err := Expand(template, valueOf); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is %q, %v; want %s", template, got, err, want)
		}
	}
}

// Expanding a template with each field's own name in braces gives the template back.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"bots/{key}", "{{}}", "{{{key}}}", "a}b", "{", "{ü}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := Expand(strings.NewReplacer("{", "{{", "}", "}}").Replace(s), valueOf); err != nil {
			t.Errorf("escaped %q: %v", s, err)
		}
		got, err := Expand(s, func(name string) (string, bool) { return "{" + name + "}", true })
		if err != nil {
			if !strings.Contains(err.Error(), "column ") || !utf8.ValidString(err.Error()) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if want := strings.NewReplacer("{{", "{", "}}", "}").Replace(s); strings.Count(s, "{{{") == 0 && strings.Count(s, "}}}") == 0 && got != want {
			t.Errorf("%q became %q", s, got)
		}
	})
}

// A key becomes part of a name unchanged, or the name is refused.
func TestKeysInNames(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"bot-42", "Shop_7", "ana@example.com", "eu/de/7", "a:b", "a+b=c", "7.5"} {
		name, err := Expand("bots/{key}", func(string) (string, bool) { return key, true })
		if err != nil || name != "bots/"+key || tidemill.CheckDataset(name) != nil {
			t.Errorf("%s is %q, %v, %v", key, name, err, tidemill.CheckDataset(name))
		}
	}
	for _, key := range []string{"", "..", "a/../b", "/", "a b", "ü", "a\x00", "a%2fb", "a\\b", ".hidden", "_", "a/_/b", "{key}", strings.Repeat("x", 255)} {
		name, err := Expand("bots/{key}", func(string) (string, bool) { return key, true })
		if err != nil || tidemill.CheckDataset(name) == nil {
			t.Errorf("%q is %q, %v, and a good name", key, name, err)
		}
	}
}

func TestCheckURI(t *testing.T) {
	t.Parallel()
	in := InputFrom{Name: "i", Allow: []string{"https://data.example/exports/", "http://[::1]:8080/", "https://b.example/file"}}
	for _, uri := range []string{"https://data.example/exports/a?b=c", "https://DATA.example/exports/", "https://data.example/exports/x/../y", "http://[::1]:8080/a", "https://b.example/file.csv", "https://data.example/exports/..a"} {
		if err := in.CheckURI(uri); err != nil {
			t.Error(err)
		}
	}
	for _, uri := range []string{"", "https://data.example/", "https://data.example/exports/../secret", "https://data.example/exports/%2e%2e/secret", "https://data.example.evil/exports/a", "http://data.example/exports/a",
		"https://data.example:444/exports/a", "https://data.example@evil.example/exports/a", "https://user:hunter2@data.example/exports/a", "file:///etc/passwd", "//data.example/exports/", "/exports/", "https:data.example/exports/a", `https://data.example/exports/..\..\secret`, "https://data.example/exports/..%5c..%5csecret", "http://127.0.0.1/?key=hunter2", "\x00"} {
		err := in.CheckURI(uri)
		if err == nil {
			t.Errorf("%q is fetched", uri)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error tells a secret: %v", err)
		}
	}
}

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
