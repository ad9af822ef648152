package config

import (
	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// maxNamed bounds the triggers, and the schedules: each costs every process
// some memory.
const maxNamed = 10_000

func (d *draft) readTriggers(v value) {
	for key, child := range v.pairs() {
		if !d.admit(key, child, len(d.triggers), "trigger") {
			continue
		}
		if reservedTrigger(key.Value) {
			child.problemAt(key, "is the name of a trigger of Tidemill's own; choose another")
		}
		t := Trigger{Name: key.Value, Delivery: defaultDelivery()}
		given := child.given(
			field{"when", func(v value) { t.When = d.readWhens(v) }},
			field{"to", func(v value) { t.To.read(v); d.place.checkService(v.at1("service")) }},
			field{"delivery", t.Delivery.read},
		)
		child.require(key, given, "when", "say which events it gets, such as {type: order-paid}")
		child.require(key, given, "to", "say who gets them, such as {url: \"https://crm.example/hooks\"}")
		d.triggers = append(d.triggers, t)
	}
}

// admit says whether one more trigger or schedule may stand here. A bad name is
// reported, and what stands beneath it is read all the same.
func (d *draft) admit(key *yaml.Node, v value, have int, what string) bool {
	if err := tidemill.CheckLabel(key.Value); err != nil {
		v.problemAt(key, "a %s's name %s", what, err)
	}
	switch {
	case have > maxNamed:
		return false // reported
	case have == maxNamed:
		v.problemAt(key, "is one %s more than %d; let one of them match what several do", what, maxNamed)
	}
	return d.only(key, v)
}
