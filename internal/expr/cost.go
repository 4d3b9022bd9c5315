package expr

import (
	"regexp"

	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// work prices every call by what it may have to read. CEL's own model knows the
// types of most arguments only where the expression declares them, and takes for one
// step what grows with a payload: comparing lists and objects, which goes to their
// depths, counting characters, reading a number. Without this, an expression within
// its limit could run for minutes on a hostile payload.
type work struct{}

var _ cost.ActualCostEstimator = work{}

// zoneSteps is the price of looking up a time zone by name.
const zoneSteps = 20

// CallCost implements [cost.ActualCostEstimator].
func (work) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	steps := uint64(1)
	switch {
	case (function == operators.Equals || function == operators.NotEquals) && len(args) == 2:
		steps += min(weigh(args[0]), weigh(args[1]))
	case function == operators.In && len(args) == 2 && args[1].Type() == types.ListType:
		steps += weigh(args[1])
	case function == overloads.Matches && len(args) == 2:
		steps += text(args[0]) * (1 + text(args[1])*10/4)
	default:
		for _, a := range args {
			steps += text(a)
		}
		steps += text(result)
		if len(args) == 2 && args[0].Type() == types.TimestampType && args[1].Type() == types.StringType {
			steps += zoneSteps
		}
	}
	return &steps
}

// bounded has the regular expressions of one overload compiled with the program, and
// matches them against short texts only: the cost of a call is known before it is
// made, while prices are asked for afterwards. A longer text is an error.
func bounded(overload string) *interpreter.RegexOptimization {
	return &interpreter.RegexOptimization{
		Function: overloads.Matches, OverloadID: overload, RegexIndex: 1,
		Factory: func(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
			compiled, err := regexp.Compile(pattern)
			if err != nil {
				return nil, err
			}
			return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
				s, ok := args[0].(types.String)
				switch {
				case !ok:
					return types.MaybeNoSuchOverloadErr(args[0])
				case len(s) > maxMatched:
					return types.NewErr("a text of %d bytes is not matched, at most %d are", len(s), maxMatched)
				}
				return types.Bool(compiled.MatchString(string(s)))
			}), nil
		},
	}
}

// text is what it costs to read a value that is text; others cost nothing more.
func text(v ref.Val) uint64 {
	switch v := v.(type) {
	case types.String:
		return textSteps(len(v))
	case types.Bytes:
		return textSteps(len(v))
	}
	return 0
}

// textSteps is what reading n bytes of text costs.
func textSteps(n int) uint64 { return uint64(n) / 10 }

// weigh is what it costs to visit all of a value, and no more than the limit.
func weigh(v ref.Val) uint64 {
	steps := uint64(0)
	weighInto(v, &steps)
	return steps
}

func weighInto(v any, steps *uint64) {
	if *steps++; *steps > maxCost {
		return
	}
	switch v := v.(type) {
	case string:
		*steps += textSteps(len(v))
	case types.String:
		*steps += textSteps(len(v))
	case types.Bytes:
		*steps += textSteps(len(v))
	case []any:
		for _, e := range v {
			if weighInto(e, steps); *steps > maxCost {
				return
			}
		}
	case map[string]any:
		for k, e := range v {
			*steps += textSteps(len(k))
			if weighInto(e, steps); *steps > maxCost {
				return
			}
		}
	case map[string]string:
		for k, e := range v {
			*steps += 1 + textSteps(len(k)+len(e))
		}
	case *types.Optional:
		if v.HasValue() {
			weighInto(v.GetValue(), steps)
		}
	case traits.Lister:
		weighList(v, steps)
	case traits.Mapper:
		weighMap(v, steps)
	}
}

// weighList looks at a list as the event gave it, where it can: to make CEL's
// values of its elements would cost more than to count them.
func weighList(v traits.Lister, steps *uint64) {
	if native, ok := v.Value().([]any); ok {
		*steps--
		weighInto(native, steps)
		return
	}
	for it := v.Iterator(); it.HasNext() == types.True; {
		if weighInto(it.Next(), steps); *steps > maxCost {
			return
		}
	}
}

func weighMap(v traits.Mapper, steps *uint64) {
	switch native := v.Value().(type) {
	case map[string]any, map[string]string:
		*steps--
		weighInto(native, steps)
		return
	}
	for it := v.Iterator(); it.HasNext() == types.True; {
		k := it.Next()
		weighInto(k, steps)
		if weighInto(v.Get(k), steps); *steps > maxCost {
			return
		}
	}
}
