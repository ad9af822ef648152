package chaos

import (
	"slices"
	"strings"
	"testing"

	"tidemill.dev/internal/data/ledger/fold"
)

// goodScores is a round without faults. It has a key with two champions in three reigns, a key
// whose champion came late, and a key without a champion. It also has an event that cannot be
// mapped, and an event whose type the scorer does not read.
func goodScores() (*scoredStory, *models) {
	of := &models{all: map[string]*model{
		"bot-0":  {Model: &fold.Model{Champion: 1}, unfit: map[int]bool{3: true}, reigns: []int{1, 2, 3, 1}},
		"bot-30": {Model: &fold.Model{Champion: 1}, unfit: map[int]bool{}, reigns: []int{1}},
	}}
	s := &scoredStory{}
	in := func(n int, key string) record {
		e := record{offset: int64(len(s.in)), id: eventID(n), key: key}
		s.in = append(s.in, e)
		return e
	}
	scored := func(n int, key string, version int) {
		e := in(n, key)
		m := modelOf(key)
		s.out = append(s.out, output{offset: int64(len(s.out)), id: "in/0/0", key: key, cause: e.id, model: m, version: version,
			label: labelOf(m, version), scores: modelLabels, in: input{0, e.offset}})
		s.swaps = append(s.swaps, swapped{m, version, 0, e.offset})
	}
	given := func(n int, key, why string) {
		e := in(n, key)
		s.letters = append(s.letters, deadLetter{id: "letter of " + e.id, rule: "scorer/" + scorerName, of: e.id, reason: why})
	}
	scored(0, "bot-0", 1)
	given(1, "bot-30", "it has no champion")
	scored(2, "bot-0", 2)
	scored(3, "bot-0", 2)
	scored(4, "bot-30", 1)
	given(5, "bot-0", "it lacks x")
	given(6, "bot-39", "it has no champion")
	scored(8, "bot-0", 1)
	in(11, "bot-0")
	return s, of
}

// Each broken round must make the judge find its fault.
func TestTheJudgeOfScorersFindsFaults(t *testing.T) {
	s, of := goodScores()
	if found := s.judge(of); len(found) > 0 {
		t.Fatalf("nothing is wrong, and it finds %q", found)
	}
	for name, c := range map[string]struct {
		wrong func(*scoredStory)
		want  []string
	}{
		"published twice":      {func(s *scoredStory) { s.in = append(s.in, s.in[0]) }, []string{"published twice: e.0"}},
		"lost":                 {func(s *scoredStory) { s.out = slices.Delete(s.out, 2, 3) }, []string{"lost: e.3"}},
		"twice":                {func(s *scoredStory) { s.out = slices.Insert(s.out, 1, s.out[0]) }, []string{"twice: e.0"}},
		"scored and given up":  {func(s *scoredStory) { s.letters[1].of = "e.3" }, []string{"twice: e.3", "lost: e.5", "given up: e.3"}},
		"a letter twice":       {func(s *scoredStory) { s.letters = append(s.letters, s.letters[0]) }, []string{"twice: e.1"}},
		"not asked for":        {func(s *scoredStory) { s.letters[2].of = "e.11" }, []string{"lost: e.6", "not asked for: e.11", "given up: e.11"}},
		"disorder":             {func(s *scoredStory) { s.out[1], s.out[2] = s.out[2], s.out[1] }, []string{"disorder: e.2"}},
		"gone back":            {func(s *scoredStory) { s.changeVersion(2, 1); s.changeVersion(4, 2) }, []string{"gone back: e.8"}},
		"by none that reigned": {func(s *scoredStory) { s.changeVersion(2, 7) }, []string{"gone back: e.3", "the swap"}},
		"by an unfit one":      {func(s *scoredStory) { s.changeVersion(2, 3) }, []string{"unfit: e.3", "the swap"}},
		"by another's":         {func(s *scoredStory) { s.out[1].label = "l9" }, []string{"answered by another"}},
		"astray":               {func(s *scoredStory) { s.out[1].partition = 3 }, []string{"astray: in/0/0"}},
		"of nothing":           {func(s *scoredStory) { s.out[0].cause = "hanging" }, []string{"of nothing: in/0/0", "lost: e.0"}},
		"strange":              {func(s *scoredStory) { s.out[0].unexpected = "it cannot be read" }, []string{"strange: in/0/0"}},
		"given up": {func(s *scoredStory) {
			s.letters = append(s.letters, deadLetter{"x", "scorer/bots", "e.0", "its model cannot be loaded"})
		}, []string{"twice: e.0", "given up: e.0"}},
		"a champion that went": {func(s *scoredStory) { s.letters[0].of, s.out[3].cause, s.out[3].in.offset = "e.4", "e.1", 1 },
			[]string{"gone back: e.4", "the swap"}},
		"passed on": {func(s *scoredStory) { s.pass, s.out[2].model = true, "" }, []string{"passed on: in/0/0 of bot-0", "given up: e.1", "given up: e.6", "gone back: e.3"}},
		"no swap":   {func(s *scoredStory) { s.swaps = s.swaps[:1] }, []string{"the swap to", "the swap to"}},
		"a swap of nothing": {func(s *scoredStory) { s.swaps = append(s.swaps, swapped{"intent/bot-0", 9, 0, 3}) },
			[]string{"a swap to intent/bot-0@9"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, of := goodScores()
			c.wrong(s)
			found := s.judge(of)
			as := func(found, want string) bool { return strings.HasPrefix(found, want) }
			if !slices.EqualFunc(found, c.want, as) {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}

// changeVersion replaces an output by the answer of another version.
func (s *scoredStory) changeVersion(at, version int) {
	o := &s.out[at]
	o.version, o.label = version, labelOf(o.model, version)
}

// After a torn transaction, a dead letter and its swap may be on the stream twice, or not at all.
func TestTheJudgeOfScorersBearsWithTornTransactions(t *testing.T) {
	s, of := goodScores()
	s.torn = true
	s.letters = append(s.letters, s.letters...)
	s.letters = append(s.letters, deadLetter{"x", "scorer/bots", "e.4", "it has no champion"})
	s.swaps = s.swaps[1:]
	if found := s.judge(of); len(found) > 0 {
		t.Errorf("it finds %q", found)
	}
}

// A key is outdated if its last output is not by its champion.
func TestOutdated(t *testing.T) {
	s, of := goodScores()
	if what := s.outdated(of); what != "" {
		t.Error(what)
	}
	of.all["bot-0"].Champion = 2
	if what := s.outdated(of); !strings.HasPrefix(what, "bot-0 is scored by version 1") {
		t.Error(what)
	}
}
