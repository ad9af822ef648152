package cron

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
)

// drawn is a random expression and its meaning, which is not obtained by parsing.
type drawn struct {
	text string
	sets [6][]int
	has  [6][60]bool // the sets as arrays, for fast lookup
	star [6]bool
}

// draw makes an expression whose fields are lists of values, or stars. Most of them fire often,
// so that many firings are near a change of clocks.
func draw(r *rand.Rand, seconds bool) drawn {
	var d drawn
	var words []string
	for i, f := range fields {
		stars := []int{0, 6, 3, 1, 1, 1}[i] // tenths, by two, of the fields that are restricted
		switch {
		case i == 0 && !seconds:
			d.sets[0] = []int{0}
			continue
		case i == 0:
			stars = 9
		}
		for n := f.low; n <= f.greatest(); n++ {
			d.sets[i] = append(d.sets[i], n)
		}
		if r.IntN(10) >= stars*2 {
			d.star[i] = true
			words = append(words, "*")
			continue
		}
		keep := 1 + r.IntN(4)
		if i == 2 {
			d.sets[i] = d.sets[i][:4] // the hours in which clocks change
		}
		r.Shuffle(len(d.sets[i]), func(a, b int) { d.sets[i][a], d.sets[i][b] = d.sets[i][b], d.sets[i][a] })
		d.sets[i] = d.sets[i][:min(keep, len(d.sets[i]))]
		var list []string
		for _, n := range d.sets[i] {
			list = append(list, strconv.Itoa(n))
		}
		words = append(words, strings.Join(list, ","))
	}
	d.text = strings.Join(words, " ")
	for i, values := range d.sets {
		for _, n := range values {
			d.has[i][n] = true
		}
	}
	return d
}

// names reports whether the expression matches the time on the wall clock.
func (d *drawn) names(wall time.Time) bool {
	hour, minute, second := wall.Clock()
	if !d.has[0][second] || !d.has[1][minute] || !d.has[2][hour] {
		return false
	}
	_, month, dayOfMonth := wall.Date()
	day, weekday := d.has[3][dayOfMonth], d.has[5][wall.Weekday()]
	if d.star[3] || d.star[5] {
		day = day && weekday
	} else {
		day = day || weekday
	}
	return day && d.has[4][month]
}

// firings steps through a period and reads the wall clock at each step.
func (d *drawn) firings(from, to time.Time, loc *time.Location, step time.Duration) (all []time.Time) {
	var shown time.Time // latest time that the clock has shown
	for at := from; at.Before(to); at = at.Add(step) {
		_, east := at.In(loc).Zone()
		wall := at.Add(time.Duration(east) * time.Second)
		fires := d.names(wall) && (d.star[2] || wall.After(shown))
		if !d.star[2] && !shown.IsZero() {
			for skipped := shown.Add(step); skipped.Before(wall) && !fires; skipped = skipped.Add(step) {
				fires = d.names(skipped)
			}
		}
		if wall.After(shown) {
			shown = wall
		}
		if fires {
			all = append(all, at)
		}
	}
	return all
}

// changes are dates near which clocks were changed in different ways, or not at all.
var changes = []struct{ zone, around string }{
	{"Europe/Berlin", "2026-03-29"}, {"Europe/Berlin", "2026-10-25"}, {"America/New_York", "2026-03-08"}, {"America/New_York", "2026-11-01"},
	{"Australia/Lord_Howe", "2026-04-05"}, {"Australia/Lord_Howe", "2026-10-04"}, {"America/Havana", "2026-03-08"}, {"America/Havana", "2026-11-01"},
	{"Asia/Beirut", "2026-03-29"}, {"Asia/Beirut", "2026-10-25"}, {"Africa/Casablanca", "2026-02-15"}, {"Africa/Casablanca", "2026-03-22"},
	{"Pacific/Apia", "2011-12-30"}, {"Pacific/Kwajalein", "1993-08-21"}, {"America/Caracas", "2016-05-01"}, {"Asia/Pyongyang", "2015-08-15"},
	{"Antarctica/Troll", "2026-03-29"}, {"Antarctica/Troll", "2026-10-25"}, {"Asia/Kolkata", "2026-06-01"}, {"UTC", "2026-12-31"},
	{"Europe/Berlin", "2040-12-31"}, {"America/New_York", "2041-01-01"}, {"Australia/Lord_Howe", "2044-12-31"},
}

// Next agrees with a simulation that reads the wall clock at every step.
func TestNextIsWhatOneSeesOnTheWall(t *testing.T) {
	t.Parallel()
	for i, c := range changes {
		t.Run(c.zone+" "+c.around, func(t *testing.T) {
			t.Parallel()
			day, err := time.Parse(time.DateOnly, c.around)
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range 12 {
				step, wide := time.Minute, 4*24*time.Hour
				if n%4 == 0 {
					step, wide = time.Second, 6*time.Hour
				}
				d := draw(r, step == time.Second)
				compare(t, d, day.Add(-wide), day.Add(wide), zone(t, c.zone), step)
			}
		})
	}
}

// The same over a year, which includes every zone's rules and leap days.
func TestNextOverAYear(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Africa/Casablanca"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(uint64(i), 2))
			from := time.Date(2027, 6, 1, 0, 0, 0, 0, time.UTC)
			d := draw(r, false)
			compare(t, d, from, from.AddDate(1, 1, 0), zone(t, name), time.Minute)
		})
	}
}

func compare(t *testing.T, d drawn, from, to time.Time, loc *time.Location, step time.Duration) {
	t.Helper()
	e, err := Parse(d.text)
	if err != nil {
		if strings.Contains(err.Error(), "never fires") && len(d.firings(from, to, loc, step)) == 0 {
			return
		}
		t.Fatal(err)
	}
	at := from
	for _, want := range d.firings(from.Add(-49*time.Hour), to, loc, step) {
		if !want.After(from) {
			continue
		}
		next, ok := e.Next(at, loc)
		if !ok || !next.Equal(want) {
			t.Fatalf("%q after %s: %s %v, want %s", d.text, at.In(loc), next, ok, want.In(loc))
		}
		at = want
	}
	if next, ok := e.Next(at, loc); ok && next.Before(to) {
		t.Fatalf("%q after %s: %s, want nothing before %s", d.text, at.In(loc), next, to.In(loc))
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"0 3 * * *", "*/5 1-3,7 L feb-MAR 1#2", "@every 90s", "@daily", "? ? ? ? ? ?", "0 0 31 2 *", "\x00"} {
		f.Add(text)
	}
	loc := zone(f, "Europe/Berlin")
	start := time.Date(2026, 3, 28, 23, 30, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(e.String()); err != nil || again != e {
			t.Errorf("%q reads back as %v, %v", e, again, err)
		}
		at := start
		for range 20 {
			next, ok := e.Next(at, loc)
			if !ok || !next.After(at) {
				t.Fatalf("%q after %s: %s %v", text, at, next, ok)
			}
			if between, _ := e.Next(at.Add(next.Sub(at)/2), loc); !between.Equal(next) {
				t.Fatalf("%q: %s and, asked later, %s", text, next, between)
			}
			at = next
		}
	})
}

func ExampleExpr_Next() {
	e, err := Parse("30 2 * * *")
	if err != nil {
		fmt.Println(err)
		return
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	at := time.Date(2026, 3, 28, 12, 0, 0, 0, berlin)
	for range 2 {
		at, _ = e.Next(at, berlin)
		fmt.Println(at)
	}
	// Output:
	// 2026-03-29 03:00:00 +0200 CEST
	// 2026-03-30 02:30:00 +0200 CEST
}
