package main

import (
	"fmt"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/loadtest/internal/task"
	"tidemill.dev/triggers/filter"
)

// matchCost is the cost of finding an event's triggers.
type matchCost struct {
	filter, index   time.Duration // time per event
	allocs, ofIndex float64
	rules           int
}

const measuredFilter = "type = 'new-data' AND subject LIKE 'bot-%'"

// measureMatching runs in this process, which does no other work at that time.
func measureMatching(smoke bool) (m matchCost, err error) {
	events, times := views(), 5_000_000
	if smoke {
		times /= 20
	}
	f, err := filter.Compile(measuredFilter)
	if err != nil {
		return m, err
	}
	passed := 0
	m.filter, m.allocs, err = measureCall(times, func(i int) {
		if !f.Match(&events[i%len(events)]) {
			passed++
		}
	})
	if err != nil {
		return m, err
	}
	if passed > 0 {
		return m, fmt.Errorf("the filter %s does not match %d events", measuredFilter, passed)
	}
	m.rules = 1000
	x, err := manyTriggers(m.rules)
	if err != nil {
		return m, err
	}
	dst := make([]int, 0, m.rules)
	m.index, m.ofIndex, err = measureCall(times/500, func(i int) { dst = x.Match(&events[i%len(events)], dst[:0]) })
	return m, err
}

func views() []broker.View {
	var all []broker.View
	for _, e := range task.Events() {
		v := broker.View{Extensions: make([]broker.Attribute, 2)}
		fill(&v, &e)
		all = append(all, v)
	}
	return all
}

// manyTriggers returns triggers for one type. Each has its own filter, which must be evaluated.
func manyTriggers(n int) (*filter.Index, error) {
	rules := make([]filter.Rule, n)
	for i := range rules {
		f, err := filter.Compile(fmt.Sprintf("subject LIKE 'bot-%d%%' AND branch = 'main'", i))
		if err != nil {
			return nil, err
		}
		rules[i] = filter.Rule{Types: []string{"new-data"}, Where: f}
	}
	return filter.NewIndex(rules), nil
}

// measureCall returns the time and the allocations of one call.
func measureCall(times int, do func(int)) (time.Duration, float64, error) {
	for i := range times / 10 {
		do(i)
	}
	var m task.Meter
	if err := m.Start(task.Task{}); err != nil {
		return 0, 0, err
	}
	for i := range times {
		do(i)
	}
	r, err := m.Stop(task.Task{})
	return r.Wall / time.Duration(times), float64(r.Mallocs) / float64(times), err
}
