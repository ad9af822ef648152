package config

import (
	"time"

	"tidemill.dev"
)

const (
	canaryHold  = time.Hour
	canaryUntil = 14 * 24 * time.Hour
	canaryLeast = 100
	mostLeast   = 1_000_000
)

// readCanary reads how a version answers a share of the events before it may become the champion.
func readCanary(v value) *tidemill.Canary {
	c := &tidemill.Canary{Share: 0.1, Hold: canaryHold, Least: canaryLeast, Until: canaryUntil}
	v.fields(
		field{"share", func(v value) { readCanaryShare(v, &c.Share) }},
		field{"by", func(v value) { readKeyPlace(v, &c.By) }},
		field{"hold", readWait(&c.Hold, 0, maxStepHold)},
		field{"least", readInteger(&c.Least, 0, mostLeast)},
		field{"until", readWait(&c.Until, time.Second, maxStepHold)},
		field{"worse", func(v value) {
			if text, ok := v.text(); ok {
				share, err := parseShare(text)
				if err != nil {
					v.problem("%s", err)
				}
				c.Worse = share
			}
		}},
	)
	if c.By == KeyNone {
		v.valueOf("by").problem("must be a place in the event, such as data.user; remove the key to decide by the event's id")
	}
	if c.Until < c.Hold {
		v.problem("has an until (%s) before its hold (%s) has passed; make until longer", showSpan(c.Until), showSpan(c.Hold))
	}
	return c
}

func readCanaryShare(v value, to *float64) {
	text, ok := v.text()
	if !ok {
		return
	}
	share, err := parseShare(text)
	switch {
	case err != nil:
		v.problem("%s", err)
	case share >= 1:
		v.problem("100%% leaves no event to the champion, so there is nothing to compare with; write a smaller share, such as 10%%")
	default:
		*to = share
	}
}
