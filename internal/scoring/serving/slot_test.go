package serving

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
)

const bot = "intent/bot"

// inBubble runs a test in a synctest bubble. The function is waits for all background work, before and
// after it checks the answer.
func inBubble(t *testing.T, test func(t *testing.T, w *world, is func(want string))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		test(t, w, func(want string) {
			t.Helper()
			synctest.Wait()
			if got := w.answers(bot); got != want {
				t.Fatalf("it answers %s, not %s", got, want)
			}
			synctest.Wait()
		})
	})
}

func TestAModelIsLoadedWhenItIsUsed(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		is("missing")
		w.promote(bot, 1)
		synctest.Wait()
		if got := w.fetches(); got != "" {
			t.Errorf("no caller has used it, and %s was fetched", got)
		}
		is("loading")
		is("1")
		is("1")
		if got := w.fetches(); got != bot+"@1" {
			t.Errorf("fetched %s", got)
		}
	})
}

// Any client can ask for any name, so the slot of a model without a champion is not remembered.
// Such a slot still returns the model once there is a champion.
func TestASlotWithoutAChampionIsForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		early := w.models.Slot(bot)
		if m, state := early.Use(); m != nil || state != Missing || early.Err() != nil || len(w.models.all()) != 0 {
			t.Errorf("%v, state %d, %d slots", m, state, len(w.models.all()))
		}
		<-early.Waiter()
		w.promote(bot, 1)
		if _, state := early.Use(); state != Loading {
			t.Errorf("state %d", state)
		}
		<-early.Waiter()
		m, state := early.Use()
		if state != Ready || m.Ref().Version != 1 {
			t.Errorf("state %d", state)
		}
		m.Release()
		is("1")
		if n := len(w.models.all()); n != 1 {
			t.Errorf("%d slots", n)
		}
	})
}

func TestASwapWaitsForNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		is("loading")
		is("1")
		old, _ := w.models.Slot(bot).Use()
		open := w.gate(bot + "@2")
		w.promote(bot, 2)
		is("1")
		open()
		is("2")
		if err := old.Run(nil, nil); err == nil || old.Ref().Version != 1 {
			t.Error("the old one does not answer its users any more")
		}
		if st := w.cache.Stats(); st.Models != 1 || st.Outside == 0 {
			t.Errorf("while the old one is used: %+v", st)
		}
		old.Release()
		if st := w.cache.Stats(); st.Models != 1 || st.Outside != 0 {
			t.Errorf("the old one is not gone: %+v", st)
		}
	})
}

func TestARollbackIsASwap(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		is("loading")
		is("1")
		w.promote(bot, 2)
		is("2")
		w.promote(bot, 1)
		is("1")
	})
}

// The champion is unfit, and the previous version is not kept. No caller waits for it, and the error names the champion's fault.
func TestAPreviousVersionThatIsNotKept(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.fails(bot+"@1", champions.ErrNoVersion)
		w.fails(bot+"@2", errUnfit)
		w.set(bot, 1)
		w.promote(bot, 2)
		is("loading")
		is("broken")
		if err := w.models.Slot(bot).Err(); !errors.Is(err, infer.ErrUnfit) || !errors.Is(err, champions.ErrNoVersion) {
			t.Errorf("the reason is %v", err)
		}
		if got := w.said(); got != bot+"@2 keeps 1; "+bot+"@1 keeps 0" {
			t.Errorf("it is reported that %s", got)
		}
	})
}

// A rollback before the newer version was loaded cancels the load and changes nothing else.
func TestARollbackEndsTheLoadOfWhatItTakesBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		is("loading")
		is("1")
		open := w.gate(bot + "@2")
		w.promote(bot, 2)
		is("1")
		w.promote(bot, 1)
		open()
		is("1")
		if w.models.Slot(bot).attempt != nil {
			t.Error("something is loaded still")
		}
	})
}

func TestANewerChampionEndsTheLoadOfAnOlder(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		open := w.gate(bot + "@1")
		is("loading")
		waiter := w.models.Slot(bot).Waiter()
		w.promote(bot, 2) // a caller waits, so this version is loaded
		synctest.Wait()
		select {
		case <-waiter:
		default:
			t.Error("the waiting caller is not woken")
		}
		open()
		is("2")
		if got := w.fetches(); got != bot+"@1 "+bot+"@2" {
			t.Errorf("fetched %s", got)
		}
	})
}

func TestAnUnfitChampionLeavesTheOldOne(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		is("loading")
		is("1")
		w.fails(bot+"@2", errUnfit)
		w.promote(bot, 2)
		is("1")
		is("1")
		if got := w.said(); got != bot+"@2 keeps 1" {
			t.Errorf("it was said: %s", got)
		}
		if err := w.models.Slot(bot).Err(); !errors.Is(err, infer.ErrUnfit) {
			t.Errorf("%v", err)
		}
		w.promote(bot, 3)
		is("3")
		if err := w.models.Slot(bot).Err(); err != nil {
			t.Errorf("%v", err)
		}
	})
}

func TestAnUnfitChampionHasTheOneBeforeLoaded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.set(bot, 1)
		w.set(bot, 2)
		w.fails(bot+"@2", errUnfit)
		is("loading")
		is("1")
		if got := w.said(); got != bot+"@2 keeps 1" {
			t.Errorf("it was said: %s", got)
		}
		w.cache.Drop(w.models.Slot(bot).serving) // evicts it from memory
		w.fetches()
		is("loading")
		is("1")
		if got := w.said() + w.fetches(); got != bot+"@1" {
			t.Errorf("said and fetched: %s", got)
		}
	})
}

func TestWhatCannotBeLoadedAtAllIsBroken(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.set(bot, 1)
		w.set(bot, 2)
		w.fails(bot+"@1", errUnfit)
		w.fails(bot+"@2", errUnfit)
		is("loading")
		is("broken")
		is("broken")
		if got := w.said(); got != bot+"@2 keeps 1; "+bot+"@1 keeps 0" {
			t.Errorf("it was said: %s", got)
		}
		if got := w.fetches(); got != bot+"@2 "+bot+"@1" {
			t.Errorf("fetched %s", got)
		}
		w.promote(bot, 3)
		is("loading")
		is("3")
	})
}

// A version that lacks ONNX Runtime is reported once and tried again. A waiting caller is woken after
// the first try, because it may give up.
func TestWhatLacksARuntimeIsReported(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.set(bot, 1)
		w.fails(bot+"@1", infer.ErrNoRuntime)
		open := w.gate(bot + "@1")
		is("loading")
		waiter := w.models.Slot(bot).Waiter()
		open()
		synctest.Wait()
		select {
		case <-waiter:
		default:
			t.Error("the waiting caller is not woken")
		}
		if err := w.models.Slot(bot).Err(); !errors.Is(err, infer.ErrNoRuntime) {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Minute)
		is("loading")
		if got := w.said(); got != bot+"@1 keeps 0" {
			t.Errorf("it was said: %s", got)
		}
		if _, err := w.models.Failure(); !errors.Is(err, infer.ErrNoRuntime) || !strings.Contains(err.Error(), bot) {
			t.Errorf("the last failure is %v", err)
		}
		w.fails(bot+"@1", nil)
		time.Sleep(time.Minute)
		is("1")
		if got := w.said(); got != bot+"@1 is loaded" {
			t.Errorf("it was said: %s", got)
		}
		if _, err := w.models.Failure(); err != nil {
			t.Errorf("the last failure is %v, and the model is loaded", err)
		}
		w.fails(bot+"@2", infer.ErrNoRuntime)
		w.promote(bot, 2)
		is("1")
		if got := w.said(); got != bot+"@2 keeps 1" {
			t.Errorf("it was said: %s", got)
		}
	})
}

// A load that fails temporarily is tried again at growing intervals. Meanwhile the old version
// answers. If none is in memory nothing answers, and never an older version.
func TestWhatFailsInPassingIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.set(bot, 1)
		w.promote(bot, 2)
		w.fails(bot+"@2", errAway)
		is("loading")
		waiter := w.models.Slot(bot).Waiter()
		time.Sleep(time.Minute)
		is("loading")
		if err := w.models.Slot(bot).Err(); !errors.Is(err, errAway) {
			t.Errorf("%v", err)
		}
		if tries := strings.Count(w.fetches(), "@2"); tries < 10 || tries > 16 {
			t.Errorf("it was tried %d times in a minute", tries)
		}
		w.fails(bot+"@2", nil)
		<-waiter
		is("2")
		w.fails(bot+"@3", errAway)
		w.promote(bot, 3)
		time.Sleep(time.Minute)
		is("2")
		w.fails(bot+"@3", nil)
		time.Sleep(mostBackoff)
		is("3")
		if got := w.said(); got != "" {
			t.Errorf("it was said: %s", got)
		}
	})
}

func TestANewerChampionDoesNotWaitForTheNextTry(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		w.fails(bot+"@1", errAway)
		is("loading")
		time.Sleep(time.Minute)
		w.promote(bot, 2)
		is("2")
	})
}

func TestAModelThatIsRetiredIsMissing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		is("loading")
		is("1")
		w.promote(bot, 0)
		is("missing")
		if st := w.cache.Stats(); st.Models != 0 {
			t.Errorf("%+v", st)
		}
		w.promote(bot, 2)
		open := w.gate(bot + "@2")
		is("loading")
		waiter := w.models.Slot(bot).Waiter()
		w.promote(bot, 0) // while a load is running and a caller waits
		<-waiter
		is("missing")
		open()
		is("missing")
	})
}

func TestWhatLeftTheMemoryIsLoadedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		is("loading")
		is("1")
		w.cache.Drop(w.models.Slot(bot).serving)
		is("loading")
		is("1")
		w.cache.Drop(w.models.Slot(bot).serving)
		w.fetches()
		w.promote(bot, 2) // it is not in memory, so this costs nothing
		synctest.Wait()
		if got := w.fetches(); got != "" {
			t.Errorf("fetched %s", got)
		}
		is("loading")
		is("2")
	})
}

// The cache may decide not to keep a model. Callers that have waited for it still find it, and
// if none uses it, it is released.
func TestWhatWasLoadedIsThereForItsFirstUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1) // keeps nothing
		w.promote(bot, 1)
		for range 3 {
			if got := w.answers(bot); got != "loading" {
				t.Fatal(got)
			}
			<-w.models.Slot(bot).Waiter()
			if got := w.answers(bot); got != "1" {
				t.Fatal(got)
			}
		}
		if got := w.answers(bot); got != "loading" {
			t.Fatal(got)
		}
		<-w.models.Slot(bot).Waiter()
		time.Sleep(pinFor)
		synctest.Wait()
		if st := w.cache.Stats(); st.Outside != 0 {
			t.Errorf("no caller used it, and it is still there: %+v", st)
		}
	})
}

// The former owner of a partition may have answered with the champion that is still being
// loaded here.
func TestSettleHasNothingOlderAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		is("loading")
		is("1")
		open := w.gate(bot + "@2")
		w.set(bot, 2) // Changed has not been called yet
		w.models.Settle()
		is("loading")
		open()
		is("2")
		w.models.Settle()
		is("2")
		w.fails(bot+"@3", errUnfit)
		w.promote(bot, 3)
		is("2")
		w.models.Settle()
		is("2") // the version that answers everywhere in place of 3
	})
}

func TestOneModelDoesNotWaitForAnother(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		open := w.gate("intent/slow@1")
		defer open()
		w.promote("intent/slow", 1)
		w.promote(bot, 1)
		if got := w.answers("intent/slow"); got != "loading" {
			t.Error(got)
		}
		is("loading")
		is("1")
	})
}

func TestAVersionByItsNumber(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, _ func(string)) {
		w.promote(bot, 2)
		for range 2 {
			m, err := w.models.At(t.Context(), bot, 1)
			if err != nil || m.Ref().Version != 1 {
				t.Fatal(m, err)
			}
			m.Release()
		}
		if got := w.fetches(); got != bot+"@1" {
			t.Errorf("fetched %s", got)
		}
	})
}

func TestCloseWakesThoseWhoWait(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		defer w.gate(bot + "@1")()
		w.promote(bot, 1)
		is("loading")
		waiter := w.models.Slot(bot).Waiter()
		if err := w.models.Close(); err != nil {
			t.Error(err)
		}
		<-waiter
		is("loading")
		w.promote(bot, 2)
		is("loading")
	})
}

func TestOpenNeedsItsParts(t *testing.T) {
	if _, err := Open(Options{}); err == nil {
		t.Error("opened")
	}
}

func TestBackoff(t *testing.T) {
	for tries, most := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond} {
		if d := backoff(tries); d < most*3/4 || d >= most {
			t.Errorf("%v after %d tries", d, tries)
		}
	}
	if d := backoff(1000); d > mostBackoff || d < mostBackoff*3/4 {
		t.Error(d)
	}
}

func TestUseOfWhatIsThereAllocatesNothing(t *testing.T) {
	w := newWorld(t, 0)
	w.promote(bot, 1)
	for w.answers(bot) != "1" {
		<-w.models.Slot(bot).Waiter()
	}
	name := []byte(bot)
	if n := testing.AllocsPerRun(1000, func() {
		m, _ := w.models.Slot(string(name)).Use()
		m.Release()
	}); n > 1 { // the conversion of the name may allocate
		t.Errorf("%v allocations", n)
	}
}

// A version that has left the memory does not answer again after another has become the champion,
// even if the same files are loaded again, by another scorer or for a model with identical files.
func TestWhatSomebodyElseLoadsDoesNotAnswerAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world, is func(string)) {
		w.promote(bot, 1)
		is("loading")
		is("1")
		old := &infer.Ref{Model: bot, Version: 1, Artifact: bot + "@1"}
		w.cache.Drop(old)
		w.promote(bot, 2)
		m, err := w.cache.Load(t.Context(), old)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Release()
		is("loading")
		is("2")
	})
}
