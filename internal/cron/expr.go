package cron

import (
	"fmt"
	"strings"
	"time"
)

// Expr is an expression that fires some time. The zero value never does. Two
// that are equal were written alike.
type Expr struct {
	text  string
	every time.Duration // of @every; then the rest counts for nothing
	clock clock
	days  days
	// wild says that the field of hours begins with a *, so that the expression
	// follows the clock on the wall wherever it goes.
	wild bool
}

// named are the expressions that have a name of their own.
var named = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *",
	"@weekly": "0 0 * * 0", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

const everyName = "@every"

// Parse reads an expression. An error says which field is wrong and what it may
// hold; an expression that could never fire is an error too.
func Parse(text string) (Expr, error) {
	words := strings.Fields(text)
	e := Expr{text: strings.Join(words, " ")}
	if len(words) > 0 && strings.HasPrefix(words[0], "@") {
		if words[0] == everyName {
			return e.parseEvery(words[1:])
		}
		known, ok := named[words[0]]
		if !ok || len(words) > 1 {
			return Expr{}, fmt.Errorf("%q is no expression; those with a name are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly and @every 90s", e.text)
		}
		words = strings.Fields(known)
	}
	return e.parseFields(words)
}

func (e Expr) parseFields(words []string) (Expr, error) {
	switch {
	case len(words) > 0 && strings.Contains(words[0], "TZ="):
		return Expr{}, fmt.Errorf("%q names a time zone, which has a place of its own; remove %s", e.text, words[0])
	case len(words) == 5:
		words = append([]string{"0"}, words...)
	case len(words) != 6:
		return Expr{}, fmt.Errorf("%q has %d fields; write five (minute hour day-of-month month day-of-week), or six with seconds first", e.text, len(words))
	}
	var sets [6]set
	for i, f := range fields {
		s, err := f.parse(words[i])
		if err != nil {
			return Expr{}, err
		}
		sets[i] = s
	}
	e.clock = clock{second: sets[0].bits, minute: sets[1].bits, hour: sets[2].bits}
	e.days = days{day: sets[3], month: sets[4].bits, weekday: sets[5]}
	e.wild = sets[2].star
	if !e.days.possible() {
		return Expr{}, fmt.Errorf("%q never fires: the day of month %s is in none of the months %s", e.text, words[3], words[4])
	}
	return e, nil
}

// String is the expression as it was written, with single spaces.
func (e Expr) String() string { return e.text }
