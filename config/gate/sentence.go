package gate

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev"
)

// maxTold bounds how many figures or failed clauses the sentence contains.
const maxTold = 3

// sentence returns the whole judgement in words.
func (g *Gate) sentence(model string, version int, f Facts, j tidemill.Judgement) string {
	head := nameOf(model, version) + " passes: "
	switch {
	case len(g.clauses) == 0:
		return head + "its recipe has no gate"
	case !j.Passed:
		return refusal(model, version) + "its gate asks for " + g.failures(f, j)
	}
	return head + g.figures(f, j)
}

func nameOf(model string, version int) string {
	return fmt.Sprintf("version %d of %s", version, brief(model))
}

// refusal begins the sentence about a version that is refused.
func refusal(model string, version int) string { return nameOf(model, version) + " is refused: " }

// figures lists the figures of the clauses, for a version that passed.
func (g *Gate) figures(f Facts, j tidemill.Judgement) string {
	var told []string
	basis, champions, free := basis(f, j), 0, false
	seen := map[string]bool{}
	for i, k := range g.clauses {
		free = free || j.Clauses[i].Passed && f.Champion == 0 && slices.ContainsFunc(k.names, func(p path) bool { return p.steps[0] == ofChampion })
		for _, p := range k.names {
			name := p.String()
			value, is := j.Clauses[i].Values[name]
			other, both := counterpart(j, name)
			if !is || seen[name] || p.steps[0] == ofChampion && hasOwn(j, name) {
				continue
			}
			seen[name] = true
			text := strings.TrimPrefix(name, ofMetrics+".") + " " + show(value, other)
			if both {
				text += fmt.Sprintf(" (champion @%d: %s%s)", f.Champion, show(other, value), basis)
				champions, basis = champions+1, ""
			}
			told = append(told, text)
		}
	}
	if len(told) > maxTold {
		told = append(told[:maxTold], fmt.Sprintf("and %d more figures", len(told)-maxTold))
	}
	if len(told) == 0 {
		told = []string{all(len(g.clauses))}
	}
	text := strings.Join(told, ", ")
	switch {
	case free:
		return text + "; there is no champion yet to compare it with"
	case champions == 0 && j.On != "":
		return text + "; champion @" + strconv.Itoa(f.Champion) + " is" + strings.TrimPrefix(basis, ",")
	}
	return text
}

func all(clauses int) string {
	if clauses == 1 {
		return "its gate's only clause holds"
	}
	return fmt.Sprintf("all %d clauses of its gate hold", clauses)
}

// counterpart returns the champion's figure of the same name, if a clause names that too.
func counterpart(j tidemill.Judgement, name string) (float64, bool) {
	for _, c := range j.Clauses {
		if value, is := c.Values[ofChampion+"."+name]; is {
			return value, true
		}
	}
	return math.NaN(), false
}

// hasOwn reports whether the version's own figure is listed too, next to a figure of the champion.
func hasOwn(j tidemill.Judgement, champions string) bool {
	own := strings.TrimPrefix(champions, ofChampion+".")
	return slices.ContainsFunc(j.Clauses, func(c tidemill.Clause) bool { _, is := c.Values[own]; return is })
}

// basis says which data the champion's figures were measured on.
func basis(f Facts, j tidemill.Judgement) string {
	switch {
	case j.On == tidemill.GateOnRecorded:
		return ", as it was registered, perhaps on other data"
	case j.On == "":
		return ""
	case f.Report.Champion != nil && f.Report.Champion.Measured != nil:
		return fmt.Sprintf(", measured on the same %d examples", f.Report.Champion.Measured.Examples)
	}
	return ", measured on the same data"
}

// failures lists the failed clauses and their figures.
func (g *Gate) failures(f Facts, j tidemill.Judgement) string {
	var told []string
	for i, c := range j.Clauses {
		if !c.Passed {
			told = append(told, g.clauses[i].failure(c, f, j))
		}
	}
	if more := len(told) - maxTold; more > 0 {
		told = append(told[:maxTold], fmt.Sprintf("and %d more clauses fail", more))
		if more == 1 {
			told[maxTold] = "and 1 more clause fails"
		}
	}
	return strings.Join(told, "; ")
}

func (k clause) failure(c tidemill.Clause, f Facts, j tidemill.Judgement) string {
	text := brief(k.text)
	if c.Note != "" && !strings.HasPrefix(c.Note, "by the figures") {
		return text + ", but " + c.Note
	}
	var values []string
	others := slices.Clone(k.constants)
	for _, v := range c.Values {
		others = append(others, v)
	}
	basis := basis(f, j)
	for _, p := range k.names {
		name := p.String()
		value, is := c.Values[name]
		if !is {
			continue
		}
		told := name + " is " + show(value, others...)
		if p.steps[0] == ofChampion && !p.isChampionsVersion() {
			told, basis = told+fmt.Sprintf(" (@%d%s)", f.Champion, basis), ""
		}
		values = append(values, told)
	}
	switch {
	case len(values) == 0:
		return text + ", which does not hold"
	case len(values) == 1 && strings.HasPrefix(text, k.names[0].String()+" "):
		return text + ", but it is " + strings.TrimPrefix(values[0], k.names[0].String()+" is ")
	}
	return text + ", but " + strings.Join(values[:len(values)-1], ", ") + and(len(values)) + values[len(values)-1]
}

func and(values int) string {
	if values > 1 {
		return " and "
	}
	return ""
}

// show prints a figure with as few digits as distinguish it from the others: 0.79, but 0.84999
// if 0.85 was required.
func show(value float64, others ...float64) string {
	const least, most = 4, 17
	for digits := least; digits < most; digits++ {
		text := shortly(value, digits)
		if !slices.ContainsFunc(others, func(o float64) bool { return o != value && shortly(o, digits) == text }) {
			return text
		}
	}
	return shortly(value, most)
}

func shortly(value float64, digits int) string {
	if value == math.Trunc(value) && math.Abs(value) < 1e15 {
		return strconv.FormatFloat(value, 'f', -1, 64)
	}
	if size := math.Abs(value); size >= 1e15 || size < 1e-4 {
		return strconv.FormatFloat(value, 'g', digits, 64)
	}
	before := len(strconv.FormatFloat(math.Trunc(math.Abs(value)), 'f', -1, 64))
	if math.Abs(value) < 1 {
		before = 0
	}
	text := strconv.FormatFloat(value, 'f', max(digits-before, 2), 64)
	return strings.TrimRight(strings.TrimRight(text, "0"), ".")
}
