package remote

import (
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger/fold"
)

// A trial says what it waits for: events if no clause is about labels, else labels.
func TestTrialsSayWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	about, without := []string{"stream.lead.low > 0"}, []string{"stream.disagree < 0.1", "stream.errors == 0"}
	for _, c := range []struct {
		pass               []string
		answered, labelled int
		state, one         string
	}{
		{about, 0, 0, "waits for answers of version 1", "0 answered, disagrees on -, 0 of 40 labelled"},
		{about, 60, 0, "waits for the first label", "60 answered, disagrees on 0.0 %, 0 of 40 labelled"},
		{about, 60, 30, "waits for more labels", "30 of 40 labelled, lead 5.0 points (-10.0 to 20.0)"},
		{about, 60, 50, "no verdict yet", "50 of 40 labelled, lead 5.0 points (-10.0 to 20.0)"},
		{without, 30, 0, "waits for more events", "30 of 40 answered, disagrees on 0.0 %"},
		{without, 60, 0, "no verdict yet", "60 of 40 answered, disagrees on 0.0 %"},
		{without, 60, 5, "no verdict yet", "5 labelled, lead 5.0 points (-10.0 to 20.0)"},
	} {
		one := &api.Trial{Champion: 1, Terms: tidemill.TrialTerms{Pass: c.pass, AtLeast: 40}, TrialCounts: tidemill.TrialCounts{Answered: c.answered, Agreed: c.answered, Labelled: c.labelled},
			Lead: tidemill.Estimate{Low: -0.1, Value: 0.05, High: 0.2}}
		if state, text := trialState(one), onTrialText(one); state != c.state || text != "on trial: "+c.one {
			t.Errorf("%v, %d answered, %d labelled: %q, %q", c.pass, c.answered, c.labelled, state, text)
		}
	}
}

func TestACanarySaysWhenItEnds(t *testing.T) {
	t.Parallel()
	m := &api.ModelWhole{Live: []api.LiveFigures{{Version: 2, Answers: 60}, {Version: 1, Answers: 900}, {Version: 2, Answers: 3}}}
	m.Champion, m.Canary = 1, &fold.Canary{Version: 2, At: time.Now(), Canary: tidemill.Canary{Share: 0.1, Hold: time.Hour, Least: 100, Until: 14 * 24 * time.Hour}}
	text := canaryText(m)
	for _, want := range []string{"answered 10% of the events", "with 63 outcomes so far", "those of version 1, and promoted after 1h, if it has 100 outcomes by then; later ones count until 14d."} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not have %q", text, want)
		}
	}
	m.Canary.Least = 0
	if text := canaryText(m); !strings.HasSuffix(text, "and promoted after 1h.") {
		t.Error(text)
	}
}
