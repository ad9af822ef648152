package fleet_test

import (
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/models/fleet"
)

// A key has the first state that applies.
func TestState(t *testing.T) {
	t.Parallel()
	const stale = 1000
	trained := func(change func(*ledger.FleetKey)) ledger.FleetKey {
		k := ledger.FleetKey{Champion: 2, Newest: 2, NewestState: tidemill.VersionPromoted, Began: stale, Registered: 1500, Last: tidemill.RunSucceeded}
		if change != nil {
			change(&k)
		}
		return k
	}
	failed := func(at int64) func(*ledger.FleetKey) {
		return func(k *ledger.FleetKey) { k.Last, k.Failed = tidemill.RunFailed, at }
	}
	for name, c := range map[string]struct {
		key  ledger.FleetKey
		data bool // whether its recipe makes no models
		want api.KeyState
	}{
		"trained":                       {key: trained(nil), want: api.KeyFresh},
		"trained before":                {key: trained(func(k *ledger.FleetKey) { k.Began = stale - 1 }), want: api.KeyStale},
		"no champion":                   {key: trained(func(k *ledger.FleetKey) { k.Champion, k.Began, k.NewestState = 0, 0, tidemill.VersionRegistered }), want: api.KeyNone},
		"no version":                    {key: ledger.FleetKey{Last: tidemill.RunSucceeded}, want: api.KeyNone},
		"never ran":                     {key: ledger.FleetKey{Running: true}, want: api.KeyNone},
		"drifting":                      {key: trained(func(k *ledger.FleetKey) { k.Drifted, k.Began = true, 1 }), want: api.KeyDrifting},
		"unserved and drifting":         {key: trained(func(k *ledger.FleetKey) { k.Unserved, k.Drifted = true, true }), want: api.KeyUnserved},
		"unserved":                      {key: trained(func(k *ledger.FleetKey) { k.Unserved, k.Began = true, 1 }), want: api.KeyUnserved},
		"failed after the version":      {key: trained(failed(1501)), want: api.KeyFailing},
		"failed before the version":     {key: trained(failed(1500)), want: api.KeyFresh},
		"failed without a version":      {key: ledger.FleetKey{Last: tidemill.RunFailed, Failed: 1}, want: api.KeyFailing},
		"failed and unserved":           {key: trained(func(k *ledger.FleetKey) { failed(1501)(k); k.Unserved = true }), want: api.KeyFailing},
		"refused and failed":            {key: trained(func(k *ledger.FleetKey) { failed(1501)(k); k.NewestState = tidemill.VersionRefused }), want: api.KeyRefused},
		"awaits and failed":             {key: trained(func(k *ledger.FleetKey) { failed(1501)(k); k.NewestState = tidemill.VersionAwaiting }), want: api.KeyAwaiting},
		"cancelled":                     {key: trained(func(k *ledger.FleetKey) { k.Last = tidemill.RunCancelled }), want: api.KeyFresh},
		"no models, succeeded":          {key: ledger.FleetKey{Last: tidemill.RunSucceeded}, data: true, want: api.KeyFresh},
		"no models, failed":             {key: ledger.FleetKey{Last: tidemill.RunFailed, Failed: 1}, data: true, want: api.KeyFailing},
		"no models, cancelled":          {key: ledger.FleetKey{Last: tidemill.RunCancelled}, data: true, want: api.KeyNone},
		"no models, no run has ended":   {key: ledger.FleetKey{Running: true}, data: true, want: api.KeyNone},
		"the newest is not judged":      {key: trained(func(k *ledger.FleetKey) { k.Newest, k.NewestState = 3, tidemill.VersionRegistered }), want: api.KeyFresh},
		"a champion that is not newest": {key: trained(func(k *ledger.FleetKey) { k.Newest, k.NewestState = 3, tidemill.VersionPromoted }), want: api.KeyFresh},
	} {
		if got := fleet.State(&c.key, !c.data, stale); got != c.want {
			t.Errorf("%s: it is %s, want %s", name, got, c.want)
		}
	}
}
