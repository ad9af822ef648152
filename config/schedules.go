package config

import (
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a file's validity must not depend on the machine's time zones

	"go.yaml.in/yaml/v3"

	"tidemill.dev/config/cron"
)

// Schedule says when the clock ticks.
type Schedule struct {
	Name     string
	Cron     string
	TimeZone string // name in the IANA database
	Missed   Missed
	Keys     []string      // sorted keys, which get one tick each; if empty, there is one tick without a key
	Each     bool          // Keys are the known keys of the recipes that name the schedule, and change with them
	Spread   time.Duration // time over which the keys' ticks are distributed evenly
}

// Missed says which ticks are sent late after the schedule was paused or no controller ran.
type Missed string

// The ways to treat missed ticks.
const (
	MissedSkip Missed = "skip"
	MissedLast Missed = "last"
	MissedAll  Missed = "all"
)

// Schedule finds a schedule by its name.
func (c *Config) Schedule(name string) (Schedule, bool) {
	i := slices.IndexFunc(c.Schedules, func(s Schedule) bool { return s.Name == name })
	if i < 0 {
		return Schedule{}, false
	}
	return c.Schedules[i], true
}

const (
	maxCron   = 200 // characters
	maxKeys   = 10_000
	maxKey    = 255 // characters
	minSpread = time.Second
	maxSpread = 24 * time.Hour
)

func (d *draft) readSchedules(v value) {
	for key, child := range v.pairs() {
		if !d.admit(key, child, len(d.schedules), "schedule") {
			continue
		}
		s := Schedule{Name: key.Value, TimeZone: "UTC", Missed: MissedSkip}
		given := child.presentFields(
			field{"cron", s.readCron},
			field{"timeZone", s.readTimeZone},
			field{"missed", s.readMissed},
			field{"keys", s.readKeys},
			field{"each", func(v value) { _, s.Each = v.oneOf("key") }},
			field{"spread", readWait(&s.Spread, minSpread, maxSpread)},
		)
		child.require(key, given, "cron", "say when it ticks: \"0 3 * * *\" is every day at three")
		s.checkKeys(child, given)
		d.schedules = append(d.schedules, s)
	}
}

func (s *Schedule) checkKeys(v value, given map[string]bool) {
	switch {
	case given["keys"] && given["each"]:
		v.child("each", v.nodeAt("each")).problem("uses the keys of recipes, and keys names others; keep one")
	case given["spread"] && !given["keys"] && !given["each"]:
		v.child("spread", v.nodeAt("spread")).problem("spreads the ticks of several keys over a time, and there are no keys: write keys, or remove the key")
	}
}

func (s *Schedule) readCron(v value) {
	text, ok := v.text()
	switch {
	case !ok:
		return
	case len(text) > maxCron:
		v.problem("%s is longer than %d letters", show(text), maxCron)
		return
	}
	if _, err := cron.Parse(text); err != nil {
		v.problem("%s", plain(err.Error()))
		return
	}
	s.Cron = strings.Join(strings.Fields(text), " ")
}

func (s *Schedule) readTimeZone(v value) {
	text, ok := v.text()
	if !ok {
		return
	}
	if text == "Local" {
		v.problem("depends on the machine of the controller; name the zone, such as Europe/Berlin")
		return
	}
	if _, err := time.LoadLocation(text); err != nil {
		v.problem("%s is not a time zone of the IANA database; write one such as Europe/Berlin, or UTC", show(text))
		return
	}
	s.TimeZone = text
}

func (s *Schedule) readMissed(v value) {
	if word, ok := v.oneOf(string(MissedSkip), string(MissedLast), string(MissedAll)); ok {
		s.Missed = Missed(word)
	}
}

// unfitForAttribute reports whether CloudEvents refuses a character in an attribute. Other control characters are
// refused in all of the file.
func unfitForAttribute(c rune) bool {
	return c == '\n' || c == '\t' || c&0xfffe == 0xfffe || c >= 0xfdd0 && c <= 0xfdef
}

func (s *Schedule) readKeys(v value) {
	items := v.items()
	switch {
	case v.node.Kind == yaml.SequenceNode && len(items) == 0:
		v.problem("is an empty list; name keys, or remove it to have one tick without a key")
	case len(items) > maxKeys:
		v.problem("has more than %d keys; make several schedules", maxKeys)
		return
	}
	first := make(map[string]int, len(items))
	for _, item := range items {
		key, ok := item.text()
		line, again := first[key]
		switch {
		case !ok:
		case len(key) > maxKey:
			item.problem("%s is longer than %d letters", show(key), maxKey)
		case strings.ContainsFunc(key, unfitForAttribute):
			item.problem("%s has a line break, a tab or a noncharacter, which the subject of an event may not have; remove it", show(key))
		case again:
			item.problem("%s appears twice; the first is in line %d, keep one", show(key), line)
		default:
			first[key] = item.node.Line
			s.Keys = append(s.Keys, key)
		}
	}
	slices.Sort(s.Keys)
}
