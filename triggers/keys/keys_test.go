package keys

import (
	"bytes"
	"slices"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/config"
)

func parse(t *testing.T, text string) *Takers {
	t.Helper()
	c, err := config.Parse("c.yaml", []byte("version: 1\n"+text))
	if err != nil {
		t.Fatal(err)
	}
	return NewTakers(c)
}

func event(typ, subject, data string, attributes ...string) *broker.View {
	v := &broker.View{ID: "1", Source: "/crm", Type: typ, Subject: subject, Data: []byte(data)}
	for i := 0; i+1 < len(attributes); i += 2 {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: attributes[i], Value: attributes[i+1]})
	}
	return v
}

const takersConfig = `
streams: {messages: {types: [message]}, other: {}, scored: {}}
schedules: {nightly: {cron: "0 3 * * *"}}
recipes:
  fraud: {key: data.bot, when: [{type: paid, where: "EXISTS country"}, {schedule: nightly, each: key}], run: {dir: ., command: [a]}, makes: {model: "fraud/{key}"}}
  shops: {key: shop, when: {stream: other}, run: {dir: ., command: [a]}, makes: {model: "shop/{key}"}}
  plain: {when: {type: paid}, run: {dir: ., command: [a]}, makes: {model: "plain/{key}"}}
  all: {key: none, when: {type: paid}, run: {dir: ., command: [a]}, makes: {model: all}}
scorers:
  intents: {from: messages, to: scored, key: data.to.bot, model: "fraud/{key}", map: {text: data.text}}
  shared: {from: messages, to: scored, key: data.to.bot, model: all, map: {text: data.text}}
triggers:
  leave: {when: {type: shop-closed, where: "EXISTS final"}, to: {function: forget}}
`

func TestKeysThatAreTaken(t *testing.T) {
	t.Parallel()
	all := parse(t, takersConfig)
	for name, c := range map[string]struct {
		stream string
		event  *broker.View
		want   []Taken
	}{
		"a recipe, by data":       {"", event("paid", "bot-42", `{"bot":"bot-7"}`, "country", "de"), []Taken{{"the recipe fraud", "data.bot", "bot-7"}}},
		"its filter":              {"", event("paid", "bot-42", `{"bot":"bot-7"}`), nil},
		"its stream":              {"messages", event("paid", "bot-42", `{"bot":"bot-7","to":{"bot":"bot-8"}}`, "country", "de"), []Taken{{"the scorer intents", "data.to.bot", "bot-8"}}},
		"no value":                {"", event("paid", "bot-42", `{"bot":{}}`, "country", "de"), nil},
		"a recipe, by attribute":  {"other", event("any", "bot-42", ``, "shop", "shop-1"), []Taken{{"the recipe shops", "shop", "shop-1"}}},
		"a scorer, by type":       {"", event("message", "bot-42", `{"to":{"bot":"bot-7"}}`), []Taken{{"the scorer intents", "data.to.bot", "bot-7"}}},
		"an event of other types": {"", event("sent", "bot-42", `{"bot":"bot-7"}`), nil},
	} {
		if got := all.Taken(c.stream, c.event); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestEventsThatEndTheirKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config string
		event  *broker.View
		ends   bool
	}{
		"bot-deleted":                {takersConfig, event("bot-deleted", "bot-7", ""), true},
		"bot-deleted without recipe": {"", event("bot-deleted", "bot-7", ""), true},
		"a type of the file":         {takersConfig, event("shop-closed", "shop-7", "", "final", "true"), true},
		"its filter":                 {takersConfig, event("shop-closed", "shop-7", ""), false},
		"another type":               {takersConfig, event("paid", "bot-7", ""), false},
	} {
		if got := parse(t, c.config).Ends("", c.event); got != c.ends {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// A megabyte of zeros took 100 MB as Go values.
func TestAPlaceIsFoundWithoutDecoding(t *testing.T) {
	v := event("message", "", `{"many":[0`+string(bytes.Repeat([]byte(",0"), 1<<19))+`],"bot":{"id":"bot-7"}}`)
	for name, want := range map[string]string{"data.bot.id": "bot-7", "data.many.3": "0", "data.none": "", "type": "message", "none": ""} {
		p := NewPlace(name)
		if got := p.Of(v); got != want {
			t.Errorf("%s: %q", name, got)
		}
		if n := testing.AllocsPerRun(1, func() { _ = p.Of(v) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
