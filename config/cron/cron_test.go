package cron

import (
	"strings"
	"testing"
	"time"
)

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      `has 0 fields; write five`,
		"* * * *":               `has 4 fields; write five`,
		"* * * * * * *":         `has 7 fields`,
		"CRON_TZ=UTC 0 3 * * *": `names a time zone, which has a separate key; remove CRON_TZ=UTC`,
		"60 * * * *":            `minute "60": "60" is not valid: use 0-59`,
		"* 24 * * *":            `hour "24": "24" is not valid: use 0-23`,
		"* * 0 * *":             `day of month "0": "0" is not valid: use 1-31`,
		"* * * 13 *":            `month "13": "13" is not valid: use 1-12 or JAN-DEC`,
		"* * * FEBR *":          `month "FEBR"`,
		"* * * * 8":             `day of week "8": "8" is not valid: use 0-7 or SUN-SAT`,
		"* * * * 5L":            `day of week "5L"`,
		"* * * * L":             `day of week "L"`,
		"? * * * *":             `minute "?"`,
		"60 * * * * *":          `second "60"`,
		"5-1 * * * *":           `the range "5-1" goes backwards; write it as two, such as 5-59,0-1`,
		"*/0 * * * *":           `the step "0" must be a whole number from 1 to 59`,
		"*/60 * * * *":          `the step "60" must be a whole number from 1 to 59`,
		"*/ * * * *":            `the step ""`,
		"1,,2 * * * *":          `"" is not valid`,
		"1- * * * *":            `"" is not valid`,
		"-1 * * * *":            `"" is not valid`,
		"+1 * * * *":            `"+1" is not valid`,
		"001 * * * *":           `"001" is not valid`,
		"0 0 30 2 *":            `never fires: the day of month 30 is in none of the months 2`,
		"0 0 31 2,4,6,9,11 *":   `never fires`,
		"@often":                `the named ones are @yearly`,
		"@daily 3":              `the named ones are @yearly`,
		"@every":                `write one duration after @every`,
		"@every 1 h":            `write one duration after @every`,
		"@every soon":           `"soon" is not a duration`,
		"@every 0s":             `must be whole seconds, from 1s to 8784h0m0s`,
		"@every -5s":            `must be whole seconds`,
		"@every 1500ms":         `must be whole seconds`,
		"@every 10000h":         `must be whole seconds`,
	} {
		if e, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want an error with %q", text, e, err, want)
		}
	}
}

func TestParseTakes(t *testing.T) {
	t.Parallel()
	for text, same := range map[string]string{
		"0 0 * * SUN":          "0 0 0 * * 7",
		"0 0 * * fri-sun":      "0 0 * * 0,5,6",
		"0 0 * JAN,mar-May ?":  "0 0 * 1,3,4,5 *",
		"*/20 * * * *":         "0,20,40 * * * *",
		"40/10 9-17/4 * * *":   "40,50 9,13,17 * * *",
		"  5   4 * *  * ":      "5 4 * * *",
		"@yearly":              "0 0 1 1 *",
		"@annually":            "0 0 1 1 *",
		"@monthly":             "0 0 1 * *",
		"@weekly":              "0 0 * * 0",
		"@daily":               "0 0 * * *",
		"@midnight":            "0 0 * * *",
		"@hourly":              "0 * * * *",
		"0 0 30 2 MON":         "0 0 30 2 1", // a Monday in February matches, because either field of days is enough
		"0 0 L 2 *":            "0 0 l 2 ?",
		"0 0 29 2 *":           "0 0 0 29 2 *",
		"0 0 */2 * *":          "0 0 */2 * ?",
		"*/15 */6 1-7 * MON/2": "0,15,30,45 */6 1-7 * 1,3,5",
	} {
		a, b := mustParse(t, text), mustParse(t, same)
		if a.text, b.text = "", ""; a != b {
			t.Errorf("%q is %+v, want that of %q: %+v", text, a, same, b)
		}
	}
}

func mustParse(t testing.TB, text string) Expr {
	t.Helper()
	e, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// The expected moments are those that people who know the zone would write down.
func TestNext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, expr, zone, after string
		want                    []string
	}{
		{"Berlin, a time left out", "30 2 * * *", "Europe/Berlin", "2026-03-28T03:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{"Berlin, a time that comes twice", "30 2 * * *", "Europe/Berlin", "2026-10-24T03:00:00+02:00",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		{"Berlin, times left out count once together", "*/15 2 * * *", "Europe/Berlin", "2026-03-28T02:45:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		{"Berlin, left out and at the jump is one", "0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00+01:00",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		{"Berlin, every real hour in spring", "0 * * * *", "Europe/Berlin", "2026-03-29T00:30:00+01:00",
			[]string{"2026-03-29T01:00:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"}},
		{"Berlin, every real hour in autumn", "0 * * * *", "Europe/Berlin", "2026-10-25T01:30:00+02:00",
			[]string{"2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"}},
		{"Berlin, by the wall: even hours", "0 */2 * * *", "Europe/Berlin", "2026-10-25T01:30:00+02:00",
			[]string{"2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T04:00:00+01:00"}},
		{"Berlin, asked in the second of two hours", "30 2 * * *", "Europe/Berlin", "2026-10-25T02:10:00+01:00",
			[]string{"2026-10-26T02:30:00+01:00"}},
		{"New York, a time left out", "30 2 8 3 *", "America/New_York", "2026-01-01T00:00:00-05:00",
			[]string{"2026-03-08T03:00:00-04:00", "2027-03-08T02:30:00-05:00"}},
		{"New York, a time that comes twice", "30 1 * * *", "America/New_York", "2026-11-01T01:00:00-04:00",
			[]string{"2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"}},
		{"New York, seconds", "15,45 59 1 * * *", "America/New_York", "2026-11-01T01:59:20-04:00",
			[]string{"2026-11-01T01:59:45-04:00", "2026-11-02T01:59:15-05:00"}},
		{"Lord Howe springs half an hour", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00+10:30",
			[]string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"}},
		{"Lord Howe falls half an hour", "45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00+11:00",
			[]string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"}},
		{"Lord Howe, each half hour is real", "*/30 * * * *", "Australia/Lord_Howe", "2026-04-05T01:10:00+11:00",
			[]string{"2026-04-05T01:30:00+11:00", "2026-04-05T01:30:00+10:30", "2026-04-05T02:00:00+10:30"}},
		{"Havana has no midnight", "@daily", "America/Havana", "2026-03-07T12:00:00-05:00",
			[]string{"2026-03-08T01:00:00-04:00", "2026-03-09T00:00:00-04:00"}},
		{"Havana has midnight once", "@daily", "America/Havana", "2026-10-31T12:00:00-04:00",
			[]string{"2026-11-01T00:00:00-04:00", "2026-11-02T00:00:00-05:00"}},
		{"Beirut has no midnight", "0 0 * * *", "Asia/Beirut", "2026-03-28T12:00:00+02:00",
			[]string{"2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"}},
		{"Beirut falls back to the day before", "30 23 * * *", "Asia/Beirut", "2026-10-24T12:00:00+03:00",
			[]string{"2026-10-24T23:30:00+03:00", "2026-10-25T23:30:00+02:00"}},
		{"Apia left out a whole day", "0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00-10:00",
			[]string{"2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"}},
		{"Kathmandu lies askew", "0 3 * * *", "Asia/Kathmandu", "2026-05-01T00:00:00Z",
			[]string{"2026-05-02T03:00:00+05:45"}},
		{"a leap day", "0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"a leap day on a Monday", "0 0 29 2 */7", "UTC", "2026-01-01T00:00:00Z", []string{"2032-02-29T00:00:00Z"}},
		{"the last of each month", "0 0 L * *", "UTC", "2027-12-31T00:00:00Z",
			[]string{"2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z", "2028-03-31T00:00:00Z"}},
		{"either of two fields of days", "0 0 13 * FRI", "UTC", "2026-02-10T00:00:00Z",
			[]string{"2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z", "2026-02-27T00:00:00Z", "2026-03-06T00:00:00Z", "2026-03-13T00:00:00Z"}},
		{"both where one begins with a star", "0 0 */2 * MON", "UTC", "2026-06-01T00:00:00Z",
			[]string{"2026-06-15T00:00:00Z", "2026-06-29T00:00:00Z"}},
		{"beyond the changes that a zone's data lists", "0 1 1 1 *", "Europe/Berlin", "2039-06-01T00:00:00Z",
			[]string{"2040-01-01T01:00:00+01:00", "2041-01-01T01:00:00+01:00", "2042-01-01T01:00:00+01:00"}},
		{"fractions of a second", "* * * * * *", "UTC", "2026-01-01T00:00:00.9Z", []string{"2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"}},
		{"a grid", "@every 90s", "Europe/Berlin", "2026-01-01T00:00:00Z", []string{"2026-01-01T00:01:30Z", "2026-01-01T00:03:00Z"}},
		{"a grid that does not fit a day", "@every 7h", "UTC", "1970-01-01T20:00:00Z", []string{"1970-01-01T21:00:00Z", "1970-01-02T04:00:00Z"}},
		{"a grid before its beginning", "@every 1h", "UTC", "1969-12-31T22:30:00Z", []string{"1969-12-31T23:00:00Z", "1970-01-01T00:00:00Z"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			at, err := time.Parse(time.RFC3339Nano, c.after)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.want {
				want, err := time.Parse(time.RFC3339, text)
				if err != nil {
					t.Fatal(err)
				}
				next, ok := mustParse(t, c.expr).Next(at, zone(t, c.zone))
				if !ok || !next.Equal(want) {
					t.Fatalf("after %s: %s %v, want %s", at, next, ok, text)
				}
				at = next
			}
		})
	}
}

func TestTheCalendarEnds(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0 0 1 1 *", "0 * * * *", "@every 1h"} {
		if at, ok := mustParse(t, text).Next(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), time.UTC); ok {
			t.Errorf("%s fires at %s", text, at)
		}
	}
	if at, ok := (Expr{}).Next(time.Unix(0, 0), time.UTC); ok {
		t.Errorf("nothing fires at %s", at)
	}
}

func BenchmarkNext(b *testing.B) {
	for _, text := range []string{"* * * * *", "0 3 * * *", "0 0 29 2 *"} {
		b.Run(text, func(b *testing.B) {
			e, loc := mustParse(b, text), zone(b, "Europe/Berlin")
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for b.Loop() {
				e.Next(at, loc)
			}
		})
	}
}
