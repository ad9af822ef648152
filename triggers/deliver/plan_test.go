package deliver

import (
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
)

// A trigger on dead letters must not get the dead letters of its own failures, because
// they would make further dead letters for ever.
func TestNoTriggerGetsLettersOfLetters(t *testing.T) {
	c := config.Default()
	c.Triggers = []config.Trigger{{Name: "page", When: []config.When{{Types: []string{tidemill.TypeEventDeadLettered}}}}}
	plans, err := compilePlans(c)
	if err != nil {
		t.Fatal(err)
	}
	match := plans[tidemill.StreamDeadLetters].match
	for data, want := range map[string]int{
		`{"originalType": "order"}`:                        1,
		`{"reason": "no event"}`:                           1,
		`{"originalType": "tidemill.event.dead-lettered"}`: 0,
	} {
		v := broker.View{ID: "1", Source: "/x", Type: tidemill.TypeEventDeadLettered, Data: []byte(data)}
		if got := match(&v, []int{7}); len(got) != 1+want || got[0] != 7 {
			t.Errorf("%s matches %v", data, got)
		}
	}
}
