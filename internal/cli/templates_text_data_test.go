package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// language has the parts of a ticket's sentences.
type language struct {
	name            string
	begin, end      []string
	topics          map[string]topic
	events          []string
	things, persons []string
}

// topic has the sentences of a topic. In them, THING and PERSON are replaced.
type topic []string

var languages = []language{
	{
		name:    "en",
		begin:   []string{"", "", "", "Hello, ", "Hi, ", "Good morning, ", "please help: ", "Excuse me, "},
		end:     []string{"", "", "", " please", " Thanks!", " It is urgent.", " Thank you"},
		things:  []string{"lamp", "shelf", "jacket", "phone", "book", "table", "bike", "pair of shoes"},
		persons: []string{"my sister", "a colleague", "the neighbour", "my father"},
		topics: map[string]topic{
			"delivery": {"where is my THING?", "the parcel with the THING has not arrived", "the tracking says nothing about my THING", "when will the THING be delivered?",
				"the courier left my THING with PERSON", "my THING was sent to the wrong address", "how long does the delivery of a THING take?", "still waiting for the THING..."},
			"return": {"I want to send the THING back", "how can I return my THING?", "the THING does not fit, can I return it?", "I need a label to send the THING back",
				"can PERSON bring the THING back to the store?", "the THING is broken and I want another one", "is it too late to return the THING?", "the THING arrived damaged"},
			"payment": {"you charged me twice for the THING", "I have not got my money back for the THING", "the invoice for the THING is wrong", "can I pay for the THING by card?",
				"my card was refused for the THING", "please refund the THING", "the price of the THING on my invoice is too high", "PERSON paid for the THING, I need the invoice"},
			"account": {"I cannot log in", "how do I change my password?", "please delete my account", "my email address has changed",
				"PERSON uses my account, how do I stop that?", "I do not get the email with the new password", "please change the address in my account", "the login says that my account is locked"},
		},
		events: []string{"Where is my parcel?", "I forgot my password and cannot log in", "You charged my card twice!", "The jacket does not fit, I want to return it"},
	},
	{
		name:    "de",
		begin:   []string{"", "", "", "Hallo, ", "Guten Tag, ", "bitte helfen Sie mir: ", "Entschuldigung, "},
		end:     []string{"", "", "", " Danke!", " Es ist dringend.", " Vielen Dank", " bitte"},
		things:  []string{"Lampe", "Jacke", "Uhr", "Tasche", "Kamera", "Maschine"},
		persons: []string{"meine Schwester", "mein Kollege", "die Nachbarin", "mein Vater"},
		topics: map[string]topic{
			"delivery": {"wo ist meine THING?", "das Paket mit der THING ist nicht angekommen", "wann wird die THING geliefert?", "die Sendung mit der THING hängt seit Tagen fest",
				"PERSON hat das Paket nicht bekommen", "die THING ging an die falsche Adresse", "wie lange dauert die Lieferung der THING?", "ich warte immer noch auf die Lieferung der THING..."},
			"return": {"ich möchte die THING zurückgeben", "wie kann ich die THING zurückschicken?", "die THING passt nicht, kann ich sie umtauschen?", "ich brauche ein Etikett, um die THING zurückzuschicken",
				"kann PERSON die THING im Laden umtauschen?", "die THING ist kaputt, ich möchte sie umtauschen", "ist es zu spät, die THING zurückzugeben?", "die THING kam kaputt an, ich möchte sie zurückschicken"},
			"payment": {"Sie haben die THING zweimal abgebucht", "ich habe mein Geld für die THING nicht zurück", "die Rechnung für die THING ist falsch", "kann ich die THING mit Karte bezahlen?",
				"meine Karte wurde für die THING abgelehnt", "bitte erstatten Sie mir die THING", "der Preis der THING auf der Rechnung ist zu hoch", "PERSON hat die THING bezahlt, ich brauche die Rechnung"},
			"account": {"ich kann mich nicht anmelden", "wie ändere ich mein Passwort?", "bitte löschen Sie mein Konto", "meine Mailadresse hat sich geändert",
				"PERSON benutzt mein Konto, was kann ich tun?", "ich bekomme keine Mail mit dem neuen Passwort", "bitte ändern Sie die Adresse in meinem Konto", "mein Konto ist gesperrt und ich kann mich nicht anmelden"},
		},
		events: []string{"Wo ist mein Paket?", "Ich habe mein Passwort vergessen und kann mich nicht anmelden", "Meine Karte wurde zweimal belastet, wo ist die Rechnung?", "Die Jacke passt nicht, ich möchte sie umtauschen"},
	},
}

// addTickets adds the files of the template text.
func addTickets(all map[string][]byte) {
	var events bytes.Buffer
	for i, l := range languages {
		r := rand.New(rand.NewPCG(uint64(i), 23))
		var names, rows []string
		for name := range l.topics {
			names = append(names, name)
		}
		slices.Sort(names)
		for len(rows) < 320 {
			name := names[r.IntN(len(names))]
			text := l.sentence(r, l.topics[name])
			if r.Float64() < 0.04 { // people make mistakes when they label
				name = names[r.IntN(len(names))]
			}
			rows = append(rows, fmt.Sprintf("\"%s\",%s\n", text, name))
		}
		all["text/data/"+l.name+"/tickets.csv"] = []byte("text,label\n" + strings.Join(rows, ""))
		for j, text := range l.events {
			data, _ := json.Marshal(map[string]string{"text": text}) // a text is always JSON
			fmt.Fprintf(&events, `{"specversion": "1.0", "id": "ticket-%s-%d", "source": "/helpdesk", "type": "ticket", "subject": "%s", "datacontenttype": "application/json", "data": %s}`+"\n",
				l.name, j+1, l.name, data)
		}
	}
	all["text/events.ndjson"] = events.Bytes()
}

func (l *language) sentence(r *rand.Rand, of topic) string {
	one := func(all []string) string { return all[r.IntN(len(all))] }
	text := one(l.begin) + one(of) + one(l.end)
	text = strings.ReplaceAll(text, "THING", one(l.things))
	text = strings.ReplaceAll(text, "PERSON", one(l.persons))
	if r.IntN(3) > 0 {
		text = strings.ToUpper(text[:1]) + text[1:]
	}
	return text
}
