package cli

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
)

// measurement is a row of the template torch: a machine's sensors, and the fault that it has.
type measurement struct {
	values [5]float64
	label  string
}

// sensors are the columns, each with its usual value and its spread.
var sensors = []struct {
	name          string
	usual, spread float64
}{{"temperature", 61, 4}, {"vibration", 1.8, 0.4}, {"pressure", 5.2, 0.5}, {"current", 12, 1.5}, {"hours", 400, 220}}

// faults are the labels, each with its effect on the sensors in spreads.
var faults = []struct {
	label  string
	effect [5]float64
}{
	{"none", [5]float64{}},
	{"none", [5]float64{0.8, 0, 0, 1, 0}}, // a heavy load is no fault
	{"bearing", [5]float64{1.5, 2.8, 0, 0.5, 1}},
	{"leak", [5]float64{0, 0.5, -2.8, 0.8, 0}},
}

// addMeasurements adds the files of the template torch.
func addMeasurements(all map[string][]byte) {
	var events bytes.Buffer
	for i, machine := range []struct {
		name string
		size float64
	}{{"press", 1}, {"pump", 0.4}} {
		r := rand.New(rand.NewPCG(uint64(i), 31))
		var csv bytes.Buffer
		csv.WriteString("temperature,vibration,pressure,current,hours,label\n")
		for range 600 {
			m := measure(r, machine.size)
			fmt.Fprintf(&csv, "%s,%s\n", strings.Join(m.texts(), ","), m.label)
		}
		all["torch/data/"+machine.name+"/measurements.csv"] = csv.Bytes()
		for j := range 5 {
			var fields []string
			for k, text := range measure(r, machine.size).texts() {
				fields = append(fields, fmt.Sprintf(`"%s": %s`, sensors[k].name, text))
			}
			fmt.Fprintf(&events, `{"specversion": "1.0", "id": "measurement-%s-%d", "source": "/factory", "type": "measurement", "subject": "%s", `+
				`"datacontenttype": "application/json", "data": {%s}}`+"\n", machine.name, j+1, machine.name, strings.Join(fields, ", "))
		}
	}
	all["torch/events.ndjson"] = events.Bytes()
}

func measure(r *rand.Rand, size float64) (m measurement) {
	f := faults[r.IntN(len(faults))]
	m.label = f.label
	for i, s := range sensors {
		m.values[i] = max(s.usual+s.spread*(f.effect[i]+r.NormFloat64()), 0)
	}
	m.values[2] *= size // a small machine has a lower pressure and current
	m.values[3] *= size
	return m
}

func (m measurement) texts() (all []string) {
	for _, v := range m.values {
		all = append(all, fmt.Sprintf("%.2f", v))
	}
	return all
}
