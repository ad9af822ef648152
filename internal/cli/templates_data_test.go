package cli

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var updateTemplates = flag.Bool("update-templates", false, "write the data of init's templates")

// The data of the templates are generated. To make them again:
// go test -run TestTemplateDataAreGenerated -update-templates ./internal/cli
func TestTemplateDataAreGenerated(t *testing.T) {
	t.Parallel()
	for name, want := range generatedData() {
		file := filepath.Join("templates", filepath.FromSlash(name))
		if *updateTemplates {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what its generator makes (%v): run this test with -update-templates", file, err)
		}
	}
}

// generatedData returns the contents of all generated files by name.
func generatedData() map[string][]byte {
	all := map[string][]byte{}
	var events []payment
	for i, s := range []shop{{"books", 20, 0.12}, {"phones", 200, 0.25}, {"travel", 330, 0.5}} {
		r := rand.New(rand.NewPCG(uint64(i), 17))
		rows := make([]payment, 800)
		for j := range rows {
			rows[j] = s.payment(r)
		}
		if s.name == "travel" { // a faulty export: one column was sorted, and the others were not
			slices.SortFunc(rows, func(a, b payment) int { return strings.Compare(a.label, b.label) })
			labels := make([]string, len(rows))
			for j := range rows {
				labels[j] = rows[j].label
			}
			r.Shuffle(len(rows), func(a, b int) { rows[a], rows[b] = rows[b], rows[a] })
			for j := range rows {
				rows[j].label = labels[j]
			}
		} else {
			events = append(events, s.complete(r, 6)...)
		}
		all["payments/data/"+s.name+"/payments.csv"] = paymentsCSV(rows)
	}
	all["payments/events.ndjson"] = paymentEvents(events)
	addTickets(all)
	addMeasurements(all)
	addImages(all)
	return all
}

// shop is a merchant with its habits.
type shop struct {
	name    string
	usual   float64 // usual amount of a payment
	foreign float64 // share of payments from any country
}

// payment is a row of the template tabular.
type payment struct {
	shop                   string
	amount                 float64
	items, hour, days      int // days is -1 if the age of the account is unknown
	card, country, express string
	label                  string
}

func (s shop) payment(r *rand.Rand) payment {
	p := payment{shop: s.name, country: "de", card: "credit", express: "no", label: "fine"}
	p.amount = math.Round(100*s.usual*math.Exp(0.7*r.NormFloat64())) / 100
	p.items = min(1+int(1.4*r.ExpFloat64()), 9)
	p.hour = min(int(12*(r.Float64()+r.Float64())), 23)
	p.days = int(400 * r.ExpFloat64())
	if r.Float64() < s.foreign {
		p.country = []string{"at", "ch", "fr", "pl"}[r.IntN(4)]
	}
	switch c := r.Float64(); {
	case c < 0.15:
		p.card = "prepaid"
	case c < 0.5:
		p.card = "debit"
	}
	if r.Float64() < 0.3 {
		p.express = "yes"
	}
	if r.Float64() < 1/(1+math.Exp(-6*p.risk(s))) {
		p.label = "fraud"
	}
	if r.Float64() < 0.08 {
		p.days = -1
	}
	if r.Float64() < 0.03 {
		p.card = ""
	}
	return p
}

// risk is above 0 if the payment is probably a fraud.
func (p *payment) risk(s shop) float64 {
	risk := -3.2 + 1.5*math.Log(p.amount/s.usual) + 0.15*float64(p.items)
	for _, c := range []struct {
		is   bool
		more float64
	}{
		{p.card == "prepaid", 2.1}, {p.country == "pl" || p.country == "fr" || p.country == "ch", 1.2},
		{p.days < 30, 1.6}, {p.express == "yes", 1.3}, {p.hour < 6, 1.6},
	} {
		if c.is {
			risk += c.more
		}
	}
	return risk
}

// complete returns payments without a missing value, half of them frauds.
func (s shop) complete(r *rand.Rand, n int) (all []payment) {
	for label := "fraud"; len(all) < n; {
		p := s.payment(r)
		if p.label == label && p.days >= 0 && p.card != "" {
			all = append(all, p)
			label = map[string]string{"fraud": "fine", "fine": "fraud"}[label]
		}
	}
	return all
}

func paymentsCSV(rows []payment) []byte {
	var b bytes.Buffer
	b.WriteString("amount,items,hour,card,country,account_days,express,label\n")
	for _, p := range rows {
		days := fmt.Sprint(p.days)
		if p.days < 0 {
			days = ""
		}
		fmt.Fprintf(&b, "%.2f,%d,%d,%s,%s,%s,%s,%s\n", p.amount, p.items, p.hour, p.card, p.country, days, p.express, p.label)
	}
	return b.Bytes()
}

func paymentEvents(all []payment) []byte {
	var b bytes.Buffer
	for i, p := range all {
		fmt.Fprintf(&b, `{"specversion": "1.0", "id": "payment-%d", "source": "/shops", "type": "payment", "subject": "%s", "datacontenttype": "application/json", `+
			`"data": {"amount": %.2f, "items": %d, "hour": %d, "card": "%s", "country": "%s", "account_days": %d, "express": "%s"}}`+"\n",
			i+1, p.shop, p.amount, p.items, p.hour, p.card, p.country, p.days, p.express)
	}
	return b.Bytes()
}
