package score

import "testing"

// A batch that grows while the committer is busy is woken when the committer is free, or at
// once if it is free already.
func TestTheBellTellsWhenTheCommitterIsFree(t *testing.T) {
	var l wakeup
	woken := 0
	wake := func() { woken++ }
	l.onWake(wake, true)()
	if woken != 1 || l.committing() {
		t.Errorf("without a batch: woken %d times, committing: %t", woken, l.committing())
	}
	l.commits(1) // one batch is being committed
	l.commits(1) // another waits to be committed
	unlisten := l.onWake(wake, true)
	l.commits(-1)
	if woken != 1 || !l.committing() {
		t.Errorf("with a batch left: woken %d times, committing: %t", woken, l.committing())
	}
	l.commits(-1)
	if woken != 2 || l.committing() {
		t.Errorf("with none left: woken %d times, committing: %t", woken, l.committing())
	}
	unlisten()
	l.commits(1)
	l.commits(-1)
	if woken != 2 {
		t.Error("it wakes without a listener")
	}
	l.onWake(wake, false)()
	if woken != 2 {
		t.Error("who does not ask for the committer is woken by it")
	}
}
