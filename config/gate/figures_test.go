package gate

import (
	"strings"
	"testing"
)

func TestStops(t *testing.T) {
	const undecided = "fleet.worse / (fleet.failed * 0) > 1 ? fleet.worse : 1 > 2"
	figures := map[string]float64{FleetWorse: 0.03, FleetFailed: 0, FleetKeys: 12, FleetRefused: 0.1, FleetRuns: 14, FleetLabelled: 2, FleetMeasured: 10, FleetPromoted: 9}
	for _, c := range []struct {
		clauses []string
		want    string
	}{
		{[]string{"fleet.worse > 0.02"}, "fleet.worse > 0.02"},
		{[]string{"fleet.worse > 0.05"}, ""},
		{[]string{"fleet.failed > 0.2", "fleet.keys >= 12 && fleet.refused > 0.05"}, "fleet.keys >= 12 && fleet.refused > 0.05"},
		{[]string{undecided, "fleet.worse > 0.02"}, "fleet.worse > 0.02"},
		{nil, ""},
	} {
		if got, err := Stops(c.clauses, figures); err != nil || got != c.want {
			t.Errorf("%q: %q, %v; want %q", c.clauses, got, err, c.want)
		}
	}
	for _, clause := range []string{undecided, "fleet.nothing > 1"} {
		if _, err := Stops([]string{clause}, figures); err == nil {
			t.Errorf("%s: decided", clause)
		}
	}
}

func TestCheckStop(t *testing.T) {
	for text, want := range map[string]string{
		"fleet.worse > 0.02":        "",
		"fleet.worst > 0.02":        "did you mean worse?",
		"fleet.nonsense > 0.02":     "there are failed, keys",
		"metrics.accuracy > 0.5":    "there is no metrics",
		"fleet.worse":               "asks nothing of it",
		"fleet.worse.low > 1":       "is a number",
		"fleet.worse > 0.02 and no": "is not CEL; write &&",
		"":                          "is empty",
	} {
		err := CheckStop(text)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}
