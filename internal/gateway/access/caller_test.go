package access

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/keys"
)

func callerWith(rights ...config.Rights) *Caller {
	c := &Caller{name: "crm"}
	for _, r := range rights {
		c.grants = append(c.grants, newGrant(r))
	}
	return c
}

func roles(r ...string) config.Rights { return config.Rights{Roles: r} }

func TestRolesCoverRoles(t *testing.T) {
	all := []Role{Publish, Metrics, Read, Operate, Approve}
	for given, want := range map[string][]Role{
		"publish": {Publish}, "metrics": {Metrics}, "read": {Read, Metrics}, "operate": {Publish, Read, Metrics, Operate}, "approve": all, "nonsense": nil,
	} {
		c := callerWith(roles(given))
		for _, r := range append(slices.Clone(all), "nonsense", "") {
			if c.Has(r) != slices.Contains(want, r) {
				t.Errorf("%s covers %s: %t", given, r, c.Has(r))
			}
		}
	}
	if c := callerWith(roles("publish", "read")); !c.Has(Publish) || !c.Has(Read) || c.Has(Operate) {
		t.Error("a list of roles is not each of them")
	}
}

// The config's reader and this package must know the same roles.
func TestRolesAreTheConfigs(t *testing.T) {
	var known []string
	for _, r := range Approve.includedRoles() {
		known = append(known, string(r))
	}
	slices.Sort(known)
	if want := slices.Sorted(slices.Values(config.AccessRoles())); !slices.Equal(known, want) {
		t.Errorf("roles %q, the config knows %q", known, want)
	}
}

func event(typ, source, subject, partitionkey string) *broker.View {
	v := &broker.View{ID: "1", Type: typ, Source: source, Subject: subject}
	if partitionkey != "" {
		v.Extensions = []broker.Attribute{{Name: "traceparent", Value: "00-x"}, {Name: "partitionkey", Value: partitionkey}}
	}
	return v
}

func TestMayPublish(t *testing.T) {
	limited := config.Rights{Roles: []string{"publish"}, Types: []string{"order-*", "refund"}, Sources: []string{"/shop/*"}, Keys: []string{"bot-42", "shop-*"}}
	for _, c := range []struct {
		name      string
		rights    config.Rights
		event     *broker.View
		attribute string // attribute of the error; "-" for no error
		says      string
	}{
		{"all limits kept", limited, event("order-paid", "/shop/7", "bot-42", ""), "-", ""},
		{"exact type", limited, event("refund", "/shop/7", "shop-7", ""), "-", ""},
		{"prefix is not contained", limited, event("re-order-paid", "/shop/7", "bot-42", ""), "type", `the type "re-order-paid", only order-*, refund`},
		{"exact is no prefix", limited, event("refunded", "/shop/7", "bot-42", ""), "type", "refund"},
		{"a prefix covers itself", limited, event("order-", "/shop/", "shop-", ""), "-", ""},
		{"case counts", limited, event("Order-paid", "/shop/7", "bot-42", ""), "type", ""},
		{"source", limited, event("refund", "/warehouse", "bot-42", ""), "source", "/shop/*"},
		{"no key", limited, event("refund", "/shop/7", "", ""), "subject", "names none: give it a subject"},
		{"subject", limited, event("refund", "/shop/7", "bot-43", ""), "subject", `"bot-43"`},
		{"partitionkey alone", limited, event("refund", "/shop/7", "", "bot-42"), "-", ""},
		{"partitionkey of another", limited, event("refund", "/shop/7", "bot-42", "bot-43"), "partitionkey", `"bot-43"`},
		{"subject of another", limited, event("refund", "/shop/7", "bot-43", "bot-42"), "subject", `"bot-43"`},
		{"no limits", roles("publish"), event("any", "any", "", ""), "-", ""},
		{"any key, but one", config.Rights{Roles: []string{"publish"}, Keys: []string{"*"}}, event("any", "any", "", ""), "subject", ""},
		{"operators publish", roles("operate"), event("any", "any", "", ""), "-", ""},
		{"readers do not", roles("read"), event("any", "any", "", ""), "", "crm may not publish: that needs the role publish"},
	} {
		err := callerWith(c.rights).MayPublish(c.event, nil)
		if c.attribute == "-" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		var at interface{ Attribute() string }
		if !errors.As(err, &at) || at.Attribute() != c.attribute || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A limit of keys covers the keys that recipes and scorers take from the data. Without that a caller
// started runs, and read answers, of any key.
func TestTakenKeysAreLimited(t *testing.T) {
	taken := []keys.Taken{{By: "the recipe fraud", Place: "data.bot", Key: "bot-42"}, {By: "the scorer intents", Place: "data.to", Key: "bot-7"}}
	limited := config.Rights{Roles: []string{"publish"}, Keys: []string{"bot-42"}}
	c := callerWith(limited)
	err := c.MayPublish(event("paid", "/crm", "bot-42", ""), taken)
	var denied *Denied
	if !errors.As(err, &denied) || denied.Attribute() != "data.to" {
		t.Fatalf("%v", err)
	}
	for _, says := range []string{"the scorer intents takes its key from data.to", `"bot-7"`, "only for the keys bot-42"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v does not say %s", err, says)
		}
	}
	if err := c.MayPublish(event("paid", "/crm", "bot-42", ""), taken[:1]); err != nil {
		t.Error(err)
	}
	both := callerWith(limited, config.Rights{Roles: []string{"publish"}, Types: []string{"order"}})
	if err := both.MayPublish(event("paid", "/crm", "bot-42", ""), taken); err == nil {
		t.Error("the grant for another type counts")
	}
	if err := both.MayPublish(event("order", "/crm", "bot-42", ""), taken); err != nil {
		t.Error(err)
	}
	if !c.KeyLimits(Publish) || c.KeyLimits(Read) || !both.KeyLimits(Publish) || Everyone().KeyLimits(Publish) {
		t.Error("a limit of keys is not seen")
	}
}

// An event that ends a key deletes models and data, so the role publish is not enough.
func TestMayEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		caller *Caller
		key    string
		may    bool
	}{
		{"a publisher", callerWith(roles("publish")), "bot-7", false},
		{"an operator", callerWith(roles("operate")), "bot-7", true},
		{"an approver", callerWith(roles("approve")), "bot-7", true},
		{"an operator of the key", callerWith(config.Rights{Roles: []string{"operate"}, Keys: []string{"bot-7"}}), "bot-7", true},
		{"an operator of another", callerWith(config.Rights{Roles: []string{"operate"}, Keys: []string{"bot-42"}}), "bot-7", false},
		{"an operator, no key", callerWith(config.Rights{Roles: []string{"operate"}, Keys: []string{"bot-42"}}), "", false},
		{"everyone", Everyone(), "bot-7", true},
	} {
		err := c.caller.MayEnd(event("bot-deleted", "/crm", c.key, ""))
		if (err == nil) != c.may || err != nil && !strings.Contains(err.Error(), "needs the role operate for the key") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestLongListsAreCutShort(t *testing.T) {
	r := roles("publish")
	for range 100 {
		r.Types = append(r.Types, strings.Repeat("a", 20))
	}
	err := callerWith(r).MayPublish(event(strings.Repeat("b", 10_000), "/x", "", ""), nil)
	if len(err.Error()) > 500 || !strings.Contains(err.Error(), "and 92 more") {
		t.Errorf("%d letters: %.600s", len(err.Error()), err)
	}
}

// Each grant is checked alone: several grants must not add up to more.
func TestGrantsDoNotMix(t *testing.T) {
	c := callerWith(
		config.Rights{Roles: []string{"operate"}, Keys: []string{"bot-1"}},
		config.Rights{Roles: []string{"read"}},
		config.Rights{Roles: []string{"publish"}, Types: []string{"order"}, Keys: []string{"bot-2"}},
	)
	for _, k := range []struct {
		role Role
		key  string
		may  bool
	}{
		{Operate, "bot-1", true}, {Operate, "bot-2", false}, {Operate, "", false},
		{Read, "bot-1", true}, {Read, "bot-9", true}, {Read, "", true},
		{Publish, "bot-1", true}, {Publish, "bot-2", true}, {Publish, "bot-3", false},
		{Approve, "bot-1", false},
	} {
		if got := c.MayTouch(k.role, k.key); got != k.may {
			t.Errorf("%s %q: %t", k.role, k.key, got)
		}
	}
	if !c.AllKeys(Read) || c.AllKeys(Operate) || c.AllKeys(Publish) || c.AllKeys(Approve) {
		t.Error("only reading is without limits")
	}
	for v, want := range map[*broker.View]string{
		event("any", "/s", "bot-1", ""):   "-",
		event("order", "/s", "bot-2", ""): "-",
		event("any", "/s", "bot-2", ""):   "subject",
		event("order", "/s", "bot-3", ""): "subject",
	} {
		err := c.MayPublish(v, nil)
		var at interface{ Attribute() string }
		if want == "-" && err != nil || want != "-" && (!errors.As(err, &at) || at.Attribute() != want) {
			t.Errorf("%s %s: %v", v.Type, v.Subject, err)
		}
	}
}

func TestEveryone(t *testing.T) {
	c := Everyone()
	if c.Name() != "" || !c.Has(Approve) || !c.AllKeys(Operate) || !c.MayTouch(Read, "") {
		t.Errorf("%+v", c)
	}
	if err := c.MayPublish(event("any", "any", "", ""), nil); err != nil {
		t.Error(err)
	}
	if c.Has("nonsense") || new(Caller).Has(Read) || new(Caller).MayTouch(Read, "a") {
		t.Error("more is granted than was given")
	}
}

func TestMayPublishIsFree(t *testing.T) {
	c := callerWith(config.Rights{Roles: []string{"publish"}, Types: []string{"order-*"}, Keys: []string{"bot-*"}})
	v := event("order-paid", "/shop/7", "bot-42", "")
	if n := testing.AllocsPerRun(100, func() { _ = c.MayPublish(v, nil) }); n > 0 {
		t.Errorf("%v allocations an event", n)
	}
}

// The rights of a team are checked alone, as those of every grant.
func TestTeamsLimitTheirMembers(t *testing.T) {
	low := config.Team{Name: "interns", Keys: []string{"lab-*"}, Recipes: []string{"intent"}, Priority: -100}
	high := config.Team{Name: "experts", Keys: []string{"lab-7"}, Recipes: []string{"*"}, Priority: 500}
	member := func(teams ...config.Team) *Caller {
		c := callerWith(config.Rights{Roles: []string{"publish"}, Keys: []string{"bot-1"}})
		for _, team := range teams {
			c.join(team)
		}
		return c
	}
	for _, c := range []struct {
		name        string
		caller      *Caller
		recipe, key string
		want        int
		says        string // part of the refusal; empty for none
	}{
		{"a member", member(low), "intent", "lab-1", -100, ""},
		{"another recipe", member(low), "fraud", "lab-1", 0, `the team interns may not operate on the recipe "fraud", only on intent`},
		{"another key", member(low), "intent", "bot-1", 0, "not operate on this key"},
		{"a run without a key", member(high), "intent", "", 0, "not operate on this key"},
		{"two teams", member(low, high), "intent", "lab-7", 500, ""},
		{"two teams, the other way", member(high, low), "intent", "lab-7", 500, ""},
		{"two teams, one of them for the key", member(low, high), "intent", "lab-1", -100, ""},
		{"two teams, one of them for the recipe", member(low, high), "fraud", "lab-7", 500, ""},
		{"no team", member(), "intent", "lab-1", 0, "not operate on this key"},
		{"an operator", callerWith(roles("operate")), "any", "", config.MaxAskedPriority, ""},
	} {
		got, err := c.caller.MayRun(c.recipe, c.key)
		if (err != nil) != (c.says != "") || err != nil && !strings.Contains(err.Error(), c.says) || err == nil && got != c.want {
			t.Errorf("%s: %d, %v", c.name, got, err)
		}
	}
	c := member(high)
	if !c.MayTouch(Read, "lab-7") || !c.MayTouch(Operate, "lab-7") || c.MayTouch(Approve, "lab-7") || c.AllKeys(Read) || c.AllKeys(Operate) {
		t.Error("the rights of a member besides runs")
	}
	if err := c.MayEnd(&broker.View{Type: "bot-deleted", Subject: "lab-7"}); err == nil {
		t.Error("a member may forget a key by an event that ends it")
	}
	if c.MayForget("lab-7") || !callerWith(roles("operate")).MayForget("lab-7") {
		t.Error("a member may forget a key, or an operator may not")
	}
}

// A team has no types and sources of its own. Without those of its members, a member could start runs of every
// recipe by an event, and take the ids of another publisher.
func TestTeamsPublishNoMoreThanTheirMembers(t *testing.T) {
	lab := config.Team{Name: "interns", Keys: []string{"lab-*"}, Recipes: []string{"intent"}}
	member := func(own ...config.Rights) *Caller {
		c := callerWith(own...)
		c.join(lab)
		c.join(config.Team{Name: "others", Keys: []string{"shop-*"}, Recipes: []string{"intent"}})
		return c
	}
	limited := config.Rights{Roles: []string{"publish", "read"}, Types: []string{"order-*"}, Sources: []string{"/ana/*"}, Keys: []string{"bot-1"}}
	for _, c := range []struct {
		name      string
		caller    *Caller
		event     *broker.View
		attribute string // attribute of the error; "-" for no error
	}{
		{"its types and sources, a key of the team", member(limited), event("order-paid", "/ana/1", "lab-1", ""), "-"},
		{"a key of its second team", member(limited), event("order-paid", "/ana/1", "shop-1", ""), "-"},
		{"its own key", member(limited), event("order-paid", "/ana/1", "bot-1", ""), "-"},
		{"another type", member(limited), event("new-data", "/ana/1", "lab-1", ""), "type"},
		{"another source", member(limited), event("order-paid", "/shop/eu", "lab-1", ""), "source"},
		{"another key", member(limited), event("order-paid", "/ana/1", "bot-2", ""), "subject"},
		{"a member without limits of types", member(config.Rights{Roles: []string{"publish"}, Keys: []string{"bot-1"}}), event("new-data", "/shop/eu", "lab-1", ""), "-"},
		{"a member that publishes nothing", member(roles("read")), event("order-paid", "/ana/1", "lab-1", ""), ""},
		{"a member without a role", member(), event("order-paid", "/ana/1", "lab-1", ""), ""},
		{"types of one role, sources of another", member(limited, config.Rights{Roles: []string{"publish"}, Types: []string{"refund"}, Sources: []string{"/bob"}}),
			event("refund", "/ana/1", "lab-1", ""), "source"},
	} {
		err := c.caller.MayPublish(c.event, nil)
		var denied *Denied
		if c.attribute == "-" && err != nil || c.attribute != "-" && (!errors.As(err, &denied) || denied.Attribute() != c.attribute) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// A team has members by the names of their tokens.
func TestTokensAreMembersOfTeams(t *testing.T) {
	token, sum := newToken()
	g := open(t, writeAccess(t, "tokens:\n"+yamlToken("ana", sum, "role: read")+"teams:\n  interns: {keys: [lab-1], recipes: [intent], priority: -5, members: [ana]}\n"), Options{})
	c, err := g.Caller(t.Context(), bearerOf(token))
	if err != nil {
		t.Fatal(err)
	}
	if most, err := c.MayRun("intent", "lab-1"); most != -5 || err != nil {
		t.Errorf("%d, %v", most, err)
	}
}
