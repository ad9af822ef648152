package telemetry

import (
	"fmt"
	"strconv"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// sampler reads which traces are kept. The default keeps what its parent keeps,
// and all that begin here.
func (e environment) sampler() (sdk.Sampler, error) {
	name, parent := strings.CutPrefix(strings.ToLower(e.value("OTEL_TRACES_SAMPLER")), "parentbased_")
	var s sdk.Sampler
	switch name {
	case "":
		return sdk.ParentBased(sdk.AlwaysSample()), nil
	case "always_on":
		s = sdk.AlwaysSample()
	case "always_off":
		s = sdk.NeverSample()
	case "traceidratio":
		ratio, err := e.ratio()
		if err != nil {
			return nil, err
		}
		s = sdk.TraceIDRatioBased(ratio)
	default:
		return nil, fmt.Errorf("read OTEL_TRACES_SAMPLER: no sampler is called %q: use always_on, always_off or traceidratio, each with parentbased_ before it or not", e.value("OTEL_TRACES_SAMPLER"))
	}
	if parent {
		return sdk.ParentBased(s), nil
	}
	return s, nil
}

func (e environment) ratio() (float64, error) {
	text := e.value("OTEL_TRACES_SAMPLER_ARG")
	if text == "" {
		return 1, nil
	}
	ratio, err := strconv.ParseFloat(text, 64)
	if err != nil || !(ratio >= 0 && ratio <= 1) { // NaN is neither
		return 0, fmt.Errorf("read OTEL_TRACES_SAMPLER_ARG: %q is no share of traces: give a number from 0 to 1", text)
	}
	return ratio, nil
}
