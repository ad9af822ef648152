package deliver

import (
	"testing"

	"tidemill.dev/config"
	"tidemill.dev/triggers/deadletters"
)

// The trigger of a recipe has a dot in its name, which other triggers cannot have. Its
// events are parked and replayed like those of any other trigger.
func TestARecipesTriggerIsLikeAnyOther(t *testing.T) {
	const name = "recipe.intent"
	w := newInstall(t, 3)
	to := newSink(t, nil)
	w.trigger(name, to.url, func(t *config.Trigger) { t.Builtin = true })
	w.trigger("recipe", to.url, func(t *config.Trigger) { t.When = []config.When{{Types: []string{"other"}}} })
	w.pause(name, true)
	d := w.open()
	w.publish(20, 4)
	w.waitFor("all are parked", w.committed)
	w.close(d)
	w.open()
	if to.count() != 0 {
		t.Fatalf("%d events came while it was paused", to.count())
	}
	w.pause(name, false)
	w.waitFor("what was parked has come", func() bool { return to.count() == 20 })
	to.inOrder()

	to.set(func(string, int) int { return 400 })
	w.publish(5, 1)
	book := w.book()
	w.waitFor("five have failed", func() bool { return book.Counts()[name] == 5 })
	for _, l := range w.letters() {
		if l.Trigger != name {
			t.Errorf("a letter of %q", l.Trigger)
		}
	}
	to.set(nil)
	w.replay(name, 0, byKey(book, deadletters.Selection{Trigger: name}))
	w.waitFor("they have come after all", func() bool { return to.count() == 25 && len(w.receipts()) == 5 })
	to.inOrder()
}
