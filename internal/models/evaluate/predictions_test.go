package evaluate

import (
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"tidemill.dev"
)

func mustRead(t *testing.T, text string) Predictions {
	t.Helper()
	p, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%.80q: %v", text, err)
	}
	return p
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-8 {
		t.Errorf("%s is %.10f, want %.10f", what, got, want)
	}
}

// formula returns 300 rows that a formula defines, so that another program can compute them too.
func formula() string {
	labels := [3]string{"cancel", "greet", "order"}
	var b strings.Builder
	b.WriteString("id,predicted,truth,champion\n")
	for i := range 300 {
		truth := labels[0]
		if i%10 != 0 {
			truth = labels[i*7%3]
		}
		said, champion := truth, truth
		if m := i * i % 11; m == 3 || m == 9 {
			said = labels[(i+1)%3]
		}
		if i*i%7 == 2 {
			champion = "other"
		}
		fmt.Fprintf(&b, "%d,%s,%s,%s\n", i, said, truth, champion)
	}
	return b.String()
}

// The expected figures are from scikit-learn 1.7 for the same rows: accuracy_score, f1_score with
// average="macro", precision_recall_fscore_support and confusion_matrix over the labels of both,
// with zero_division=0.
func TestFiguresAreThoseOfScikitLearn(t *testing.T) {
	t.Parallel()
	type class struct {
		label                 string
		precision, recall, f1 float64
		support, predicted    int
	}
	p := mustRead(t, formula())
	for _, c := range []struct {
		name              string
		f                 *tidemill.Figures
		accuracy, macroF1 float64
		classes           []class
		cells             []tidemill.Cell
	}{
		{"own", p.Own, 0.6533333333333333, 0.6501749125437283, []class{
			{"cancel", 0.71428571, 0.66666667, 0.68965517, 120, 112},
			{"greet", 0.61702128, 0.64444444, 0.63043478, 90, 94},
			{"order", 0.61702128, 0.64444444, 0.63043478, 90, 94},
		}, []tidemill.Cell{{Truth: 0, Predicted: 0, Count: 80}, {Truth: 0, Predicted: 1, Count: 36}, {Truth: 0, Predicted: 2, Count: 4}, {Truth: 1, Predicted: 1, Count: 58},
			{Truth: 1, Predicted: 2, Count: 32}, {Truth: 2, Predicted: 0, Count: 32}, {Truth: 2, Predicted: 2, Count: 58}}},
		{"champion", p.Champion, 0.7133333333333334, 0.6247867003177783, []class{
			{"cancel", 1, 0.70833333, 0.82926829, 120, 85},
			{"greet", 1, 0.71111111, 0.83116883, 90, 64},
			{"order", 1, 0.72222222, 0.83870968, 90, 65},
			{"other", 0, 0, 0, 0, 86},
		}, []tidemill.Cell{{Truth: 0, Predicted: 0, Count: 85}, {Truth: 0, Predicted: 3, Count: 35}, {Truth: 1, Predicted: 1, Count: 64}, {Truth: 1, Predicted: 3, Count: 26},
			{Truth: 2, Predicted: 2, Count: 65}, {Truth: 2, Predicted: 3, Count: 25}}},
	} {
		near(t, c.name+" accuracy", c.f.Accuracy.Value, c.accuracy)
		near(t, c.name+" macro-F1", c.f.MacroF1.Value, c.macroF1)
		if c.f.Examples != 300 || len(c.f.Classes) != len(c.classes) || !reflect.DeepEqual(c.f.Cells, c.cells) {
			t.Fatalf("%s: %+v", c.name, c.f)
		}
		for i, want := range c.classes {
			got := c.f.Classes[i]
			if got.Label != want.label || got.Support != want.support || got.Predicted != want.predicted {
				t.Errorf("%s: %+v, want %+v", c.name, got, want)
			}
			near(t, want.label+" precision", got.Precision.Value, want.precision)
			near(t, want.label+" recall", got.Recall.Value, want.recall)
			near(t, want.label+" F1", got.F1, want.f1)
		}
	}
}

// All these layouts of the file have the rows a a a, a b a, b b a.
func TestLayouts(t *testing.T) {
	t.Parallel()
	want := mustRead(t, "truth,predicted,champion\na,a,a\na,b,a\nb,b,a\n")
	if want.Own.Examples != 3 || want.Own.Accuracy.Value != 2.0/3 || want.Champion.Accuracy.Value != 2.0/3 {
		t.Fatalf("%+v", want.Own)
	}
	for name, text := range map[string]string{
		"another order":       "champion,predicted,truth\na,a,a\na,b,a\na,b,b\n",
		"other columns":       "text,truth,p(a),predicted,champion\n\"Hi, \"\"you\"\"\nthere\",a,0.5,a,a\n,a,,b,a\nx,b,1,b,a\n",
		"quotes":              "\"truth\",\"predicted\",\"champion\"\n\"a\",\"a\",a\na,\"b\",a\n\"b\",b,\"a\"\n",
		"CRLF, no last end":   "truth,predicted,champion\r\na,a,a\r\na,b,a\r\nb,b,a",
		"a byte order mark":   "\xef\xbb\xbftruth,predicted,champion\na,a,a\na,b,a\nb,b,a\n",
		"one before a quote":  "\xef\xbb\xbf\"truth\",predicted,champion\na,a,a\na,b,a\nb,b,a\n",
		"capitals and blanks": "Truth, Predicted ,CHAMPION\na , a,a\n a,b , a\nb,b,a\n",
		"empty lines":         "\ntruth,predicted,champion\n\na,a,a\na,b,a\n\n\nb,b,a\n\n",
	} {
		if got := mustRead(t, text); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got.Own, want.Own)
		}
	}
	if got := mustRead(t, strings.Repeat("truth,predicted\n", 1)+"a,a\na,b\nb,b\n"); got.Champion != nil || got.Lead != nil || !reflect.DeepEqual(got.Own, want.Own) {
		t.Errorf("without a champion: %+v", got)
	}
	if got, err := Read(iotest.OneByteReader(strings.NewReader("\xef\xbb\xbftruth,predicted,champion\na,a,a\na,b,a\nb,b,a\n"))); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("byte by byte: %+v, %v", got, err)
	}
}

// If all rows have one truth, the accuracy is easily 1, and a note says so.
func TestOnlyOneTruth(t *testing.T) {
	t.Parallel()
	p := mustRead(t, "truth,predicted\na,a\na,b\na,a\n")
	if want := []string{`the truth of each row of predictions.csv is "a", so no figure is about the other classes`}; !reflect.DeepEqual(p.Notes, want) {
		t.Errorf("notes %q", p.Notes)
	}
}

// An empty answer is wrong, and no class of the mean. A champion without answers has no figures.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	p := mustRead(t, "truth,predicted,champion\na,a,a\na,,\nb,b,\nb,b,b\n")
	near(t, "accuracy", p.Own.Accuracy.Value, 0.75)
	near(t, "macro-F1", p.Own.MacroF1.Value, (2.0/3+1)/2)
	near(t, "the champion's", p.Champion.Accuracy.Value, 0.5)
	if k := p.Champion.Classes[0]; k.Label != "" || k.Predicted != 2 || k.Support != 0 || k.F1 != 0 {
		t.Errorf("no answer is %+v", k)
	}
	if want := []string{"1 of 4 rows of predictions.csv have nothing in the column predicted, which counts as wrong",
		"2 of 4 rows of predictions.csv have nothing in the column champion, which counts as wrong"}; !reflect.DeepEqual(p.Notes, want) {
		t.Errorf("notes %q", p.Notes)
	}
	if p := mustRead(t, "truth,predicted,champion\na,a,\nb,a, \n"); p.Champion != nil || p.Lead != nil || len(p.Notes) != 0 {
		t.Errorf("a champion of no answers: %+v", p)
	}
}

func TestBadFiles(t *testing.T) {
	t.Parallel()
	var many, wide, numbers, sales strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&many, "label-%d,x\n", i)
		fmt.Fprintf(&numbers, "%d,%d\n", i, i+1)
		fmt.Fprintf(&sales, "%d.5,%d.25\n", i, i+1)
	}
	for i := range 30 {
		fmt.Fprintf(&wide, "column-%d,", i)
	}
	const head = "truth,predicted\n"
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "predictions.csv is empty; its first line names the columns, truth and predicted among them"},
		{"only a mark", "\xef\xbb\xbf\n", "predictions.csv is empty; its first line names the columns, truth and predicted among them"},
		{"no rows", head, "predictions.csv has a header and no rows"},
		{"no truth", "label,predicted\na,b\n", `predictions.csv line 1: there is no column truth; the header names "label" "predicted"`},
		{"no predicted", "truth,prediction\na,b\n", `predictions.csv line 1: there is no column predicted; the header names "truth" "prediction"`},
		{"no header", "a,b\na,b\n", `predictions.csv line 1: there is no column truth; the header names "a" "b"`},
		{"semicolons", "truth;predicted\na;b\n", "predictions.csv line 1: there is no column truth; its columns are separated by semicolons: write commas"},
		{"tabs", "truth\tpredicted\na\tb\n", "predictions.csv line 1: there is no column truth; its columns are separated by tabs: write commas"},
		{"many columns", wide.String() + "\n", `predictions.csv line 1: there is no column truth; the header names "column-0" "column-1" "column-2" "column-3" "column-4" "column-5" "column-6" "column-7" "column-8" "column-9"`},
		{"a column twice", "truth,predicted,Truth\na,b,c\n", "predictions.csv line 1: the column truth occurs twice; keep one"},
		{"an empty truth", head + "a,b\n,b\n", "predictions.csv line 3: the truth is empty; leave out such rows"},
		{"a cell too few", head + "a,b\n\na\n", "predictions.csv line 4: it has 1 cells and the header has 2; a label with a comma needs quotes"},
		{"a cell too many", head + "a,b,c\n", "predictions.csv line 2: it has 3 cells and the header has 2; a label with a comma needs quotes"},
		{"a bare quote", head + "a,b\"c\n", `predictions.csv line 2: bare " in non-quoted-field, in column 4; a label with a quote needs quotes around it, and the quote doubled`},
		{"an open quote", head + "a,a\n\"a,b\na,b\n", `predictions.csv line 4: extraneous or missing " in quoted-field, in column 5; a label with a quote needs quotes around it, and the quote doubled`},
		{"a long open quote", head + "a,a\n\"a" + strings.Repeat(",b\na", 1<<20), "predictions.csv line 3: the row is longer than 1024 KiB; is a quote not closed?"},
		{"a long row", head + strings.Repeat("a", 2<<20), "predictions.csv line 2: the row is longer than 1024 KiB; is a quote not closed?"},
		{"a long header", strings.Repeat("a", 2<<20), "predictions.csv line 1: the row is longer than 1024 KiB; is a quote not closed?"},
		{"a long label", head + strings.Repeat("a", 501) + ",b\n", "predictions.csv line 2: a label is longer than 500 bytes"},
		{"labels", head + many.String(), "predictions.csv has more than 2000 labels; are these the predictions of a classifier?"},
		{"integers", head + numbers.String(), "predictions.csv holds numbers, more than 2000 different ones: " + ofRegression},
		{"a regression", head + sales.String(), "predictions.csv holds numbers, more than 2000 different ones: " + ofRegression},
		{"a small one", head + strings.Join(strings.SplitAfter(sales.String(), "\n")[:60], ""), "predictions.csv holds numbers, 120 different ones in 60 rows: " + ofRegression},
		{"a tiny one", head + "1.5,1.25\n2,3\n", "predictions.csv holds numbers, 4 different ones in 2 rows: " + ofRegression},
	} {
		_, err := Read(strings.NewReader(c.text))
		var file *FileError
		if !errors.As(err, &file) || err.Error() != c.want {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

// Grades and numbers of classes are labels.
func TestNumbersThatAreLabels(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"1.5,2\n2,1.5\n1.5,1.5\n2,2\n", "0,1\n1,0\n", "17,3\n4,999\n"} {
		if p := mustRead(t, "truth,predicted\n"+text); len(p.Own.Classes) < 2 {
			t.Errorf("%q: %+v", text, p.Own)
		}
	}
}

// An error of the reader is not an error of the file, and another try may succeed.
func TestReaderFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("the store is away")
	for _, text := range []string{"", "truth,pre", "truth,predicted\n", "truth,predicted\na,b\n", "truth,predicted\na,\"b"} {
		_, err := Read(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken)))
		var file *FileError
		if !errors.Is(err, broken) || errors.As(err, &file) {
			t.Errorf("behind %q: %v", text, err)
		}
	}
}

// The limits of labels and pairs are inclusive.
func TestBounds(t *testing.T) {
	t.Parallel()
	c := newCount()
	for i := range maxCells {
		if err := c.add(row{i, fmt.Sprint(i / maxLabels), fmt.Sprint(i % maxLabels), ""}); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.labels)-1 != maxLabels || len(c.own) != maxCells {
		t.Errorf("%d labels, %d pairs", len(c.labels)-1, len(c.own))
	}
	if err := c.add(row{1, "0", "0", ""}); err != nil {
		t.Error(err)
	}
	if err := c.add(row{1, "0", "another", ""}); err == nil || !strings.Contains(err.Error(), "more than 2000 different ones") {
		t.Error(err)
	}
	if err := c.add(row{1, fmt.Sprint(maxCells / maxLabels), "0", ""}); err == nil || !strings.Contains(err.Error(), "200000 different pairs") {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{"", "truth,predicted\na,b\n", "truth,predicted,champion\r\na,\"b\nc\",\n", "\xef\xbb\xbftruth,predicted\n1,2\n", "\"", "truth,predicted\n\xff,\xfe\n", "truth;predicted\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Read(strings.NewReader(text))
		if err != nil {
			if p.Own != nil || len(err.Error()) > 1000 {
				t.Errorf("%+v, %v", p, err)
			}
			return
		}
		for _, g := range []*tidemill.Figures{p.Own, p.Champion} {
			if g != nil {
				checkFigures(t, g)
			}
		}
		if (p.Champion == nil) != (p.Lead == nil) || p.Lead != nil && (p.Lead.Low < -1 || p.Lead.Low > p.Lead.Value || p.Lead.Value > p.Lead.High || p.Lead.High > 1) {
			t.Errorf("lead %+v", p.Lead)
		}
	})
}

func checkFigures(t *testing.T, f *tidemill.Figures) {
	t.Helper()
	shares := []tidemill.Estimate{f.Accuracy, f.MacroF1}
	cells, support, predicted := 0, 0, 0
	for _, c := range f.Cells {
		cells += c.Count
	}
	for _, k := range f.Classes {
		shares = append(shares, k.Precision, k.Recall)
		support, predicted = support+k.Support, predicted+k.Predicted
	}
	if f.Examples < 1 || cells != f.Examples || support != f.Examples || predicted != f.Examples {
		t.Errorf("%d examples, %d in the matrix, %d true, %d predicted", f.Examples, cells, support, predicted)
	}
	for _, e := range shares {
		if !(0 <= e.Low && e.Low <= e.Value && e.Value <= e.High && e.High <= 1) {
			t.Errorf("an estimate of %+v", e)
		}
	}
}
