package fleet

import (
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger"
)

// State returns the state of a key. The parameter models says whether its recipe makes models,
// and stale is the time before which a champion's run began too long ago, in Unix milliseconds.
func State(k *ledger.FleetKey, models bool, stale int64) api.KeyState {
	failed := k.Last == tidemill.RunFailed
	switch {
	case !models && failed:
		return api.KeyFailing
	case !models && k.Last == tidemill.RunSucceeded:
		return api.KeyFresh
	case !models:
		return api.KeyNone
	case k.NewestState == tidemill.VersionAwaiting:
		return api.KeyAwaiting
	case k.NewestState == tidemill.VersionRefused:
		return api.KeyRefused
	case failed && k.Failed > k.Registered:
		return api.KeyFailing
	case k.Unserved:
		return api.KeyUnserved
	case k.Champion == 0:
		return api.KeyNone
	case k.Drifted:
		return api.KeyDrifting
	case k.Began < stale:
		return api.KeyStale
	}
	return api.KeyFresh
}

// ages are the bounds of the ages of champions.
func ages() []age {
	const hour, day = time.Hour, 24 * time.Hour
	return []age{{"1h", hour}, {"6h", 6 * hour}, {"1d", day}, {"7d", 7 * day}, {"30d", 30 * day}, {older, 0}, {none, 0}}
}

// age is a greatest age with its name.
type age struct {
	name  string
	bound time.Duration
}

const older, none = "older", "none"

// ageOf returns the index of the age of a key's champion among all ages.
func ageOf(all []age, k *ledger.FleetKey, now time.Time) int {
	if k.Champion == 0 {
		return len(all) - 1
	}
	old := now.Sub(time.UnixMilli(k.Began))
	for i := range all[:len(all)-2] {
		if old <= all[i].bound {
			return i
		}
	}
	return len(all) - 2
}
