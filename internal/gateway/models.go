package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/models/lineage"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/filter"
)

func modelParameters() []string {
	return []string{"after", "awaiting", "key", "limit", "pinned", "prefix", "recipe", "stale"}
}

// modelsThere returns a problem if this gateway has no models.
func (g *Gateway) modelsThere() *api.Problem {
	if g.opt.Ledger == nil || g.opt.Models == nil {
		return noRuns()
	}
	return nil
}

// listModels answers with models, sorted by name. If only stale models are requested, the stalest
// model comes first.
func (g *Gateway) listModels(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery(modelParameters())
	if p != nil {
		return p
	}
	now := time.Now()
	q, p := modelQuery(values, now)
	if p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	q.Seen = seenBy(r.caller, access.Read)
	page, err := g.opt.Ledger.Models(ctx, q)
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	metrics, err := g.opt.Ledger.ChampionMetrics(ctx, page.Models)
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	waiting, err := g.newestWaiting(ctx, page.Models)
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	shown := make([]api.ModelShown, len(page.Models))
	for i := range page.Models {
		s := shownModel(&page.Models[i], q.Stale, now)
		s.Metrics = metrics[s.Name]
		if j := waiting[s.Name]; j != nil {
			s.Hold, s.Lacks = j.Hold, j.Lacks
		}
		shown[i] = s
	}
	writeJSON(w, http.StatusOK, api.Models{Models: shown, Next: page.Next, Total: page.Total})
	return nil
}

// newestWaiting returns the judgements of the newest versions that wait for a person, by model.
func (g *Gateway) newestWaiting(ctx context.Context, models []fold.Model) (map[string]*tidemill.Judgement, error) {
	var held []ledger.HeldBy
	for i := range models {
		all := models[i].Versions
		if n := len(all); n > 0 && all[n-1].State == tidemill.VersionAwaiting {
			held = append(held, ledger.HeldBy{Model: models[i].Name, Held: all[n-1]})
		}
	}
	records, err := g.opt.Ledger.VersionsOf(ctx, held)
	if err != nil {
		return nil, fmt.Errorf("look up why versions wait: %w", err)
	}
	all := make(map[string]*tidemill.Judgement, len(records))
	for i := range records {
		all[records[i].Model] = records[i].Judgement
	}
	return all, nil
}

// modelQuery reads the parameters of listModels.
func modelQuery(values url.Values, now time.Time) (q ledger.ModelQuery, p *api.Problem) {
	q = ledger.ModelQuery{Recipe: values.Get("recipe"), Key: values.Get("key"), Prefix: values.Get("prefix"), After: values.Get("after")}
	if q.Awaiting, p = yesOf(values, "awaiting"); p != nil {
		return q, p
	}
	if q.Pinned, p = yesOf(values, "pinned"); p != nil {
		return q, p
	}
	if stale := values.Get("stale"); stale != "" {
		at, err := follow.ParseTime("-"+stale, now)
		if err != nil {
			return q, badParameter("stale", clipText(stale)+" is not a duration; write it like 12h or 7d")
		}
		q.Stale = at
	}
	q.Limit, p = limitOf(values, mostOnOne, usualPage)
	return q, p
}

// yesOf reads a parameter that is true, false or absent.
func yesOf(values url.Values, name string) (bool, *api.Problem) {
	switch text := values.Get(name); text {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	default:
		return false, badParameter(name, clipText(text)+" is neither true nor false")
	}
}

// seenBy returns a filter for the models that a caller may see; nil means all.
func seenBy(caller *access.Caller, role access.Role) func(recipe, key string) bool {
	if caller.AllKeys(role) {
		return nil
	}
	return func(recipe, key string) bool { return caller.MayTouch(role, tidemill.OwnerOf(recipe, key)) }
}

// shownModel returns one entry of the list. If the caller requested stale models, the entry says
// why the model is stale.
func shownModel(m *fold.Model, stale, now time.Time) api.ModelShown {
	s := api.ModelShown{Name: m.Name, Key: m.Key, Recipe: m.Recipe, Champion: m.Champion, Newest: m.Last, Versions: len(m.Versions), Unserved: m.Unserved}
	if n := len(m.Versions); n > 0 {
		s.State = m.Versions[n-1].State
	}
	if c := m.Find(m.Champion); c != nil {
		s.Began = &c.Began
	}
	for _, c := range m.Changes {
		if c.Version == m.Champion {
			s.Promoted = &c.At
		}
	}
	if m.Pin != nil {
		s.Pinned, s.PinnedBy = true, m.Pin.By
	}
	if !m.Retired.IsZero() {
		s.Retired = &m.Retired
	}
	if !stale.IsZero() {
		s.Why = whyStale(&s, now)
	}
	return s
}

func whyStale(s *api.ModelShown, now time.Time) string {
	switch {
	case s.Retired != nil:
		return "its key is deleted"
	case s.Champion == 0 && s.State == "":
		return "it has no version"
	case s.Champion == 0:
		return "it has no champion: its newest version is " + string(s.State)
	case s.Began == nil:
		return "it is unknown when its champion was trained"
	}
	why := []string{"its champion was trained " + roughAge(now.Sub(*s.Began)) + " ago"}
	if s.Newest != s.Champion {
		why = append(why, "version "+number(s.Newest)+" is "+string(s.State))
	}
	if s.Pinned {
		why = append(why, "it is pinned")
	}
	return strings.Join(why, ", and ")
}

// roughAge writes a duration in its largest unit.
func roughAge(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return number(int(d/day)) + " days"
	case d >= 2*time.Hour:
		return number(int(d/time.Hour)) + " hours"
	case d >= 2*time.Minute:
		return number(int(d/time.Minute)) + " minutes"
	}
	return number(int(d/time.Second)) + " seconds"
}

// showModel answers with a model and all its versions, or with one version and its measurements.
func (g *Gateway) showModel(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"model", "version"})
	if p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	m, p := g.findModel(ctx, r, access.Read, values.Get("model"))
	if p != nil {
		return p
	}
	var numbers []int
	which := values.Get("version")
	if which != "" {
		n, p := versionOf(m, which)
		if p != nil {
			return p
		}
		numbers = []int{n}
	}
	found, err := g.opt.Ledger.Versions(ctx, m.Name, numbers...)
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	whole := api.ModelWhole{Model: *m, All: make([]api.ModelVersion, len(found))}
	for i := range found {
		if whole.All[i], p = g.shownVersion(ctx, &found[i], which != ""); p != nil {
			return p
		}
	}
	writeJSON(w, http.StatusOK, whole)
	return nil
}

// findModel finds a model by its name. The answer for a model that the caller may not touch is the
// same as for an unknown model.
func (g *Gateway) findModel(ctx context.Context, r *request, role access.Role, name string) (*fold.Model, *api.Problem) {
	if name == "" {
		return nil, badParameter("model", "name one; GET /api/v1/models lists them")
	}
	if err := tidemill.CheckDataset(name); err != nil {
		return nil, badParameter("model", err.Error())
	}
	m, err := g.opt.Ledger.Model(ctx, name)
	switch {
	case err != nil:
		return nil, g.ledgerProblem(r.Context(), err)
	case m.Next == 0:
		return nil, unknownModel(name)
	case !r.caller.MayTouch(role, tidemill.OwnerOf(m.Recipe, m.Key)) && !r.caller.AllKeys(role):
		g.noteRefusal(r, role, "models", forbidden("model "+name+" is not of a key that the caller may "+string(role)))
		return nil, unknownModel(name)
	}
	return m, nil
}

// versionOf returns the number of the version that a text names.
func versionOf(m *fold.Model, which string) (int, *api.Problem) {
	if _, _, err := tidemill.CutVersionName(m.Name + "@" + which); err != nil {
		return 0, badParameter("version", err.Error())
	}
	n := m.Which(which)
	if n == 0 {
		return 0, unknownVersion(m.Name, which)
	}
	return n, nil
}

// shownVersion returns a version, with the measurements from the store if the caller wants them.
func (g *Gateway) shownVersion(ctx context.Context, v *ledger.VersionRecord, measured bool) (api.ModelVersion, *api.Problem) {
	shown := api.ModelVersion{Version: v.Version, State: v.State, Judgement: v.Judgement}
	if !measured {
		return shown, nil
	}
	report, err := g.opt.Models.Report(ctx, &v.Version)
	switch {
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrMissing):
		report = tidemill.Report{Metrics: v.Metrics, Notes: []string{"the report is no longer in the store; these are the metrics from the registration of the version"}}
	case err != nil:
		return shown, g.storeFault("read the report of "+tidemill.VersionName(v.Model, v.Number), err)
	}
	shown.Measured = &report
	return shown, nil
}

// showWhy answers with the causes and consequences of a run, model, commit or event.
func (g *Gateway) showWhy(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"of"})
	if p != nil {
		return p
	}
	of := values.Get("of")
	if of == "" {
		return badParameter("of", "give an id: run/ID, model/NAME or model/NAME@VERSION, commit/DATASET@COMMIT, or event/ID")
	}
	if p := g.runsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	graph, err := lineage.Of(ctx, g.whySources(r.caller), of)
	if err != nil {
		return g.lineageProblem(r.Context(), err)
	}
	writeJSON(w, http.StatusOK, graph)
	return nil
}

func (g *Gateway) whySources(caller *access.Caller) lineage.Sources {
	all := caller.AllKeys(access.Read)
	return lineage.Sources{Ledger: g.opt.Ledger, Broker: g.opt.Broker, Store: g.opt.Store, Names: g.installNames(), Config: g.opt.Config(),
		MayRead:     func(key string) bool { return all || caller.MayTouch(access.Read, key) },
		MayReadData: func(dataset string) bool { return g.hasRoleFor(caller, access.Read, dataset) }}
}

// lineageProblem is the problem of a failed lineage lookup.
func (g *Gateway) lineageProblem(ctx context.Context, err error) *api.Problem {
	switch {
	case errors.Is(err, lineage.ErrRef), errors.Is(err, ledger.ErrAmbiguous), errors.Is(err, store.ErrInvalid):
		return badParameter("of", err.Error())
	case errors.Is(err, lineage.ErrUnknown):
		return problem(api.NotFound, http.StatusNotFound, "there is no such path", err.Error())
	}
	return g.ledgerProblem(ctx, err)
}

// promoteModel makes a version the champion.
func (g *Gateway) promoteModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionPromote)
}

// rollbackModel makes an older version the champion again.
func (g *Gateway) rollbackModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionRollback)
}

// pinModel pins the champion, or makes a version the champion and pins it.
func (g *Gateway) pinModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionPin)
}

// unpinModel removes the pin from the champion.
func (g *Gateway) unpinModel(w http.ResponseWriter, r *request) *api.Problem {
	return g.wish(w, r, tidemill.ActionUnpin)
}

func (g *Gateway) wish(w http.ResponseWriter, r *request, action tidemill.Action) *api.Problem {
	var ask api.PromotionAsked
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	if p := checkWish(&ask, action); p != nil {
		return p
	}
	span := g.startSpan(r)
	defer span.End()
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	m, p := g.findModel(ctx, r, access.Approve, ask.Model)
	if p != nil {
		return p
	}
	began := time.Now()
	got, err := g.opt.Models.Wish(ctx, registry.Wish{Model: m.Name, Action: action, Version: ask.Version, Basis: ask.Basis, Force: ask.Force,
		Reason: ask.Reason, By: r.callerName(), ID: tidemill.ID("promotion wished", r.callerName(), m.Name, wishKey(r)), DryRun: ask.DryRun})
	if err != nil {
		return g.modelRequestProblem(r.Context(), m.Name, err, began)
	}
	done := doneOfWish(action, &got, ask.DryRun)
	if !ask.DryRun {
		g.log.Info("gateway: command for a model", "what", string(action), "model", m.Name, "version", done.Version, "by", r.callerName())
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// wishKey returns the key of a request. A second request of the same caller with the same
// Idempotency-Key has the same key and is a repeat.
func wishKey(r *request) string { return orElse(r.Header.Get(api.HeaderIdempotencyKey), rand.Text()) }

func checkWish(ask *api.PromotionAsked, action tidemill.Action) *api.Problem {
	switch {
	case ask.Version < 0:
		return badParameter("version", "versions are numbered from 1")
	case action == tidemill.ActionPromote && ask.Version == 0:
		return badParameter("version", "give the version to promote; GET /api/v1/model lists them")
	case action == tidemill.ActionUnpin && ask.Version != 0:
		return badParameter("version", "unpin is for the whole model: leave it out")
	case action != tidemill.ActionPromote && ask.Force:
		return badParameter("force", "only a promotion is forced, of a version that was refused")
	case len(ask.Reason) > mostReason:
		return badParameter("reason", fmt.Sprintf("it has %d bytes, and the log keeps it forever: use at most %d", len(ask.Reason), mostReason))
	}
	return nil
}

// doneOfWish describes the result of a request in words.
func doneOfWish(action tidemill.Action, got *registry.Answer, dry bool) api.PromotionDone {
	done := api.PromotionDone{Model: got.Model.Name, Version: got.Version, Before: got.Before, Champion: got.Model.Champion}
	if dry && action != tidemill.ActionUnpin {
		done.Champion = got.Version
	}
	verb, would := "has", ""
	if dry {
		verb, would = "would have", "would be "
	}
	switch action {
	case tidemill.ActionUnpin:
		done.Done = would + "unpinned: its gate decides again"
	case tidemill.ActionPin:
		done.Done = fmt.Sprintf("%spinned to version %d", would, got.Version)
		if got.Before != got.Version {
			done.Done += ", previously " + versionText(got.Before)
		}
	default:
		done.Done = fmt.Sprintf("%s version %d as its champion, previously %s", verb, got.Version, versionText(got.Before))
	}
	return done
}

func versionText(n int) string {
	if n == 0 {
		return "none"
	}
	return "version " + number(n)
}

// rollbackModels rolls many models back to their champions at a given time.
func (g *Gateway) rollbackModels(w http.ResponseWriter, r *request) *api.Problem {
	var ask api.RollbackAsked
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	if p := checkRollback(&ask, time.Now()); p != nil {
		return p
	}
	where, p := runFilter(ask.Where)
	if p != nil {
		return p
	}
	b, end := g.newBulk(r, 0, ask.DryRun)
	defer end()
	done, p := b.rollBackAll(&ask, where)
	if p != nil {
		return p
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

func checkRollback(ask *api.RollbackAsked, now time.Time) *api.Problem {
	selects := ask.Recipe+ask.Key+ask.Prefix+ask.Where != ""
	switch {
	case ask.Since.IsZero():
		return badParameter("since", "give the time: promotions after it are rolled back")
	case ask.Since.After(now):
		return badParameter("since", "it is in the future")
	case selects == ask.All:
		return badParameter("all", "give a recipe, a key, a prefix or where, or all: true and none of them")
	case len(ask.Reason) > mostReason:
		return badParameter("reason", fmt.Sprintf("it has %d bytes, and every model repeats it: use at most %d", len(ask.Reason), mostReason))
	}
	return nil
}

// rollBackAll rolls back the selected models, page by page.
func (b *bulkChange) rollBackAll(ask *api.RollbackAsked, where *filter.Filter) (done api.PromotionsDone, p *api.Problem) {
	done.Models = []api.PromotionDone{}
	q := ledger.ModelQuery{Recipe: ask.Recipe, Key: ask.Key, Prefix: ask.Prefix, Seen: seenBy(b.r.caller, access.Approve), After: ask.After, Limit: runsAtATime}
	for {
		page, err := b.g.opt.Ledger.Models(b.ctx, q)
		if err != nil {
			return done, b.g.ledgerProblem(b.r.Context(), err)
		}
		var meant []rollbackPath
		for i := range page.Models {
			m := &page.Models[i]
			if way, moved := wayBack(m, ask.Since); moved && modelWanted(where, m) {
				meant = append(meant, way)
			}
		}
		lines := make([]api.PromotionDone, len(meant))
		err = forEach(len(meant), func(i int) (err error) {
			lines[i], err = b.rollBackModel(&meant[i], ask.Reason)
			return err
		})
		if err != nil {
			return done, b.g.modelRequestProblem(b.r.Context(), "", err, b.began)
		}
		done.Models = append(done.Models, lines...)
		if q.After = page.Next; page.Next == "" || b.isTimeUp(len(done.Models)) {
			done.Next = page.Next
			return done, nil
		}
	}
}

func modelWanted(where *filter.Filter, m *fold.Model) bool {
	return filterOfRuns(where, m.Recipe, m.Key, broker.Attribute{Name: tidemill.AttrModel, Value: m.Name})
}

// rollbackPath describes how a model returns to its champion at a given time.
type rollbackPath struct {
	model *fold.Model
	to    int    // version of the earlier champion
	not   string // reason why a rollback is impossible
}

// wayBack finds the champion before the first change since a given time. A model is left out if its
// champion is the same as before that change.
func wayBack(m *fold.Model, since time.Time) (w rollbackPath, moved bool) {
	w.model = m
	for i, c := range m.Changes {
		if c.At.Before(since) {
			continue
		}
		w.to = c.Before
		switch {
		case w.to != 0 && i == 0: // older changes are no longer known
			w.not = "its champion has changed too often since then: give the version to roll back to"
		case w.to == m.Champion:
			return w, false
		case w.to == 0:
			w.not = "it has no previous champion"
		case m.Find(w.to) == nil:
			w.not = fmt.Sprintf("version %d, the previous champion, is no longer stored", w.to)
		}
		return w, true
	}
	return w, false
}

// rollBackModel rolls a model back, if the model's champion has not changed since the lookup.
func (b *bulkChange) rollBackModel(w *rollbackPath, reason string) (api.PromotionDone, error) {
	m := w.model
	done := api.PromotionDone{Model: m.Name, Version: w.to, Before: m.Champion, Champion: m.Champion, Done: w.not, Refused: w.not != ""}
	if done.Refused {
		return done, nil
	}
	got, err := b.g.opt.Models.Wish(b.ctx, registry.Wish{Model: m.Name, Action: tidemill.ActionRollback, Version: w.to, Basis: &m.Champion, Reason: reason,
		By: b.by, ID: tidemill.ID("promotion wished", b.by, m.Name, b.named), DryRun: b.dryRun})
	switch {
	case err == nil:
		return doneOfWish(tidemill.ActionRollback, &got, b.dryRun), nil
	case errors.Is(err, registry.ErrMoved), errors.Is(err, registry.ErrRefused), errors.Is(err, registry.ErrUnknown):
		done.Done, done.Refused = err.Error(), true
		return done, nil
	case errors.Is(err, context.Canceled):
		return done, b.ctx.Err()
	}
	return done, err
}

// listFreezes answers with the recipes whose promotions are frozen.
func (g *Gateway) listFreezes(w http.ResponseWriter, r *request) *api.Problem {
	if p := g.modelsThere(); p != nil {
		return p
	}
	f, p := g.commandLog(r.Context())
	if p != nil {
		return p
	}
	all := api.Promotions{Frozen: []api.Freeze{}}
	for recipe, by := range f.Now().Freezes() {
		all.Frozen = append(all.Frozen, api.Freeze{Recipe: recipe, By: by.By, Since: by.Since, Reason: by.Reason})
	}
	slices.SortFunc(all.Frozen, func(a, b api.Freeze) int { return cmp.Compare(a.Recipe, b.Recipe) })
	writeJSON(w, http.StatusOK, all)
	return nil
}

// freezePromotions stops the promotions of all gates, for one recipe or for all.
func (g *Gateway) freezePromotions(w http.ResponseWriter, r *request) *api.Problem {
	return g.freeze(w, r, true, commands.Author.FreezePromotions)
}

// thawPromotions ends a freeze.
func (g *Gateway) thawPromotions(w http.ResponseWriter, r *request) *api.Problem {
	return g.freeze(w, r, false, commands.Author.ThawPromotions)
}

func (g *Gateway) freeze(w http.ResponseWriter, r *request, freezes bool, act func(commands.Author, string, string) (broker.View, error)) *api.Problem {
	var ask api.FreezeAsked
	if p := g.readCommand(r, &ask); p != nil {
		return p
	}
	if p := g.modelsThere(); p != nil {
		return p
	}
	if !r.caller.AllKeys(access.Approve) {
		return forbidden("a freeze is for all keys, and you may approve only for some: use a token for all keys")
	}
	f, p := g.commandLog(r.Context())
	if p != nil {
		return p
	}
	recipe := orElse(ask.Recipe, tidemill.AllRecipes)
	_, frozen := f.Now().Freezes()[recipe]
	if p := g.checkFreeze(&ask, frozen); p != nil {
		return p
	}
	done := api.Rested{Name: recipe, Changed: frozen != freezes}
	if done.Changed {
		v, err := act(g.commandAuthor(r), recipe, ask.Reason)
		if err != nil {
			return invalidRequest(err.Error())
		}
		at, p := g.publishAct(r, &v)
		if p != nil {
			return p
		}
		done.Position = new(positionOf(at))
		g.untilRead(r.Context(), f, at)
	}
	writeJSON(w, http.StatusOK, done)
	return nil
}

// checkFreeze accepts a recipe of the config, or a recipe that was removed from the config while
// its promotions were frozen.
func (g *Gateway) checkFreeze(ask *api.FreezeAsked, frozen bool) *api.Problem {
	if _, known := g.opt.Config().Recipe(ask.Recipe); ask.Recipe != "" && ask.Recipe != tidemill.AllRecipes && !known && !frozen {
		return g.unknownRecipe(ask.Recipe)
	}
	if len(ask.Reason) > mostReason {
		return badParameter("reason", fmt.Sprintf("it has %d bytes: use at most %d", len(ask.Reason), mostReason))
	}
	return nil
}
