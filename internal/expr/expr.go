package expr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// Limits of an expression.
const (
	// MaxBytes bounds its text.
	MaxBytes = 4096
	// maxCost bounds one evaluation, in CEL's cost units: one for each operation, and
	// one for every ten bytes that a text function reads. A few milliseconds.
	maxCost    = 100_000
	maxNodes   = 2_000 // after macros are expanded
	maxDepth   = 50
	maxLoops   = 2        // inside one another
	maxPattern = 300      // instructions of one regular expression
	maxMatched = 32 << 10 // bytes of a text that is matched
	// maxResult bounds a text that an expression gives, in bytes.
	maxResult = 64 << 10
)

// Kind is what an expression is to give.
type Kind int

// Kinds.
const (
	String Kind = iota + 1
	Bool
)

func (k Kind) String() string {
	switch k {
	case String:
		return "string"
	case Bool:
		return "bool"
	}
	return "unknown kind"
}

// Input is the event that an expression is about. Nothing of it is changed.
type Input struct {
	ID, Type, Source, Subject string
	Time                      time.Time         // zero: unknown
	Headers                   map[string]string // by lower-case names
	Body                      []byte            // the payload's bytes, JSON or not
}

// Program is a compiled expression, safe for concurrent use.
type Program struct {
	text    string
	kind    Kind
	program cel.Program
	uses    map[string]bool
}

// ErrCost is in the chain of an evaluation's error if it was stopped because it
// cost too much.
var ErrCost = errors.New("costs too much")

var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.OptionalTypes(),
		cel.Variable("id", cel.StringType),
		cel.Variable("type", cel.StringType),
		cel.Variable("source", cel.StringType),
		cel.Variable("subject", cel.StringType),
		cel.Variable("time", cel.TimestampType),
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("body", cel.DynType),
		cel.CrossTypeNumericComparisons(true), // body.n > 5, whatever kind of number n is
		cel.DefaultUTCTimeZone(true),
		cel.ParserRecursionLimit(maxDepth),
		cel.ParserErrorRecoveryLimit(2),
		cel.ParserExpressionSizeLimit(MaxBytes),
		cel.ExpressionNodeLimit(maxNodes),
		cel.RegexProgramSizeLimit(maxPattern),
		cel.ASTValidators(
			cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(),
			cel.ValidateComprehensionNestingLimit(maxLoops),
		),
	)
})

// Compile checks an expression and makes it ready. Errors say in which line and
// column, counted from 1, what is wrong; an expression of another kind, or one
// that is bound to cost too much, is one of them. Where the kind shows only at
// run time (body.id may be anything), it is checked then.
func Compile(text string, want Kind) (*Program, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("expression has %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	if !utf8.ValidString(text) {
		return nil, errors.New("expression is not valid UTF-8")
	}
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("expression is empty")
	}
	env, err := environment()
	if err != nil { // not reached: the environment is constant
		return nil, fmt.Errorf("make the environment: %w", err)
	}
	checked, err := check(env, text)
	if err != nil {
		return nil, err
	}
	if got := checked.OutputType(); !got.IsExactType(want.celType()) && !got.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("line 1, column 1: the expression gives a %s, a %s is wanted", got, want)
	}
	if err := literalPatterns(checked.NativeRep()); err != nil {
		return nil, err
	}
	if c, err := env.EstimateCost(checked, sizes{}); err == nil && c.Min > maxCost {
		return nil, fmt.Errorf("line 1, column 1: the expression takes at least %d steps, at most %d are allowed", c.Min, maxCost)
	}
	program, err := env.Program(checked, cel.CostLimit(maxCost), cel.CostTracking(work{}), cel.OptimizeRegex(bounded(overloads.Matches), bounded(overloads.MatchesString)), cel.EvalOptions(cel.OptOptimize), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, fmt.Errorf("expression cannot be planned: %w", err)
	}
	return &Program{text: text, kind: want, program: program, uses: variables(checked.NativeRep())}, nil
}

func (k Kind) celType() *cel.Type {
	if k == Bool {
		return cel.BoolType
	}
	return cel.StringType
}

// checking is held while CEL's checker runs: its table of messages is filled at the
// first error without a lock.
var checking sync.Mutex

func check(env *cel.Env, text string) (*cel.Ast, error) {
	checking.Lock()
	defer checking.Unlock()
	checked, issues := env.Compile(text)
	return checked, located(issues)
}

// located gives the first faults of a compilation in one line.
func located(issues *cel.Issues) error {
	if issues == nil || issues.Err() == nil {
		return nil
	}
	var faults []string
	for _, e := range issues.Errors() {
		if len(faults) == 3 {
			faults = append(faults, "and more")
			break
		}
		faults = append(faults, fmt.Sprintf("line %d, column %d: %s", max(e.Location.Line(), 1), e.Location.Column()+1, strings.Join(strings.Fields(e.Message), " ")))
	}
	return errors.New(strings.Join(faults, "; "))
}

// literalPatterns refuses regular expressions that only an event would give: to
// compile one is work that nobody has agreed to.
func literalPatterns(a *ast.AST) error {
	for _, e := range ast.MatchDescendants(ast.NavigateAST(a), ast.FunctionMatcher(overloads.Matches)) {
		args := e.AsCall().Args()
		if pattern := args[len(args)-1]; pattern.Kind() != ast.LiteralKind {
			at := a.SourceInfo().GetStartLocation(pattern.ID())
			return fmt.Errorf("line %d, column %d: the regular expression must be a literal", at.Line(), at.Column()+1)
		}
	}
	return nil
}

// variables are the names of the environment that the expression refers to.
func variables(a *ast.AST) map[string]bool {
	used := map[string]bool{}
	for _, r := range a.ReferenceMap() {
		if len(r.OverloadIDs) == 0 && r.Name != "" {
			used[r.Name] = true
		}
	}
	return used
}

// Uses reports whether the expression refers to the variable, or to a variable of
// a loop that has its name.
func (p *Program) Uses(variable string) bool { return p.uses[variable] }

// Text is the expression as it was compiled.
func (p *Program) Text() string { return p.text }

// String evaluates an expression of kind [String]. The same input gives the same
// result, errors included: absent fields, values of other kinds and too much work
// ([ErrCost]) do not depend on time or load. Only the end of ctx does.
func (p *Program) String(ctx context.Context, in Input) (string, error) {
	v, err := p.eval(ctx, Prepare(in), String)
	if err != nil {
		return "", err
	}
	s, ok := v.(types.String)
	switch {
	case !ok:
		return "", fmt.Errorf("expression gives a %s, a string is wanted", v.Type().TypeName())
	case len(s) > maxResult:
		return "", fmt.Errorf("expression gives %d bytes, at most %d are allowed", len(s), maxResult)
	}
	return string(s), nil
}

// Bool evaluates an expression of kind [Bool], as [Program.String] does.
func (p *Program) Bool(ctx context.Context, in Input) (bool, error) {
	return p.Choose(ctx, Prepare(in))
}

// Prepared is an event that many expressions are asked about: its payload is read
// once. It is not safe for concurrent use.
type Prepared struct {
	activation
	spent uint64
}

// Prepare makes an event ready for [Program.Choose].
func Prepare(in Input) *Prepared { return &Prepared{activation: activation{in: &in}} }

// maxSpent is the work that all expressions together may do for one event: as much
// as this many of the costliest.
const maxSpent = 20 * maxCost

// Choose is [Program.Bool] of a prepared event. Once the expressions that were asked
// about it have done more work than any event is worth, all further ones give
// [ErrCost].
func (p *Program) Choose(ctx context.Context, in *Prepared) (bool, error) {
	if in.spent > maxSpent {
		return false, fmt.Errorf("the event's expressions together %w", ErrCost)
	}
	v, err := p.eval(ctx, in, Bool)
	if err != nil {
		return false, err
	}
	b, ok := v.(types.Bool)
	if !ok {
		return false, fmt.Errorf("expression gives a %s, a bool is wanted", v.Type().TypeName())
	}
	return bool(b), nil
}

func (p *Program) eval(ctx context.Context, in *Prepared, kind Kind) (ref.Val, error) {
	if p.kind != kind {
		return nil, fmt.Errorf("expression was compiled for a %s", p.kind)
	}
	v, details, err := p.program.ContextEval(ctx, &in.activation)
	if c := details.ActualCost(); c != nil {
		in.spent += *c
	} else {
		in.spent += maxCost
	}
	var stopped interpreter.EvalCancelledError
	switch {
	case err == nil:
		return v, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("evaluate expression: %w", ctx.Err())
	case errors.As(err, &stopped) && stopped.Cause == interpreter.CostLimitExceeded:
		return nil, fmt.Errorf("expression %w: more than %d steps", ErrCost, maxCost)
	}
	// CEL's errors name fields and types of the event; keys that a payload chooses
	// may be long.
	return nil, fmt.Errorf("evaluate expression: %s", clip(err.Error()))
}

func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// activation gives the variables of one evaluation, the body when it is asked for.
type activation struct {
	in   *Input
	body any
	read bool
}

// ResolveName implements [cel.Activation].
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case "id":
		return a.in.ID, true
	case "type":
		return a.in.Type, true
	case "source":
		return a.in.Source, true
	case "subject":
		return a.in.Subject, true
	case "time":
		if a.in.Time.IsZero() {
			return time.Unix(0, 0).UTC(), true
		}
		return a.in.Time.UTC(), true
	case "headers":
		if a.in.Headers == nil {
			return map[string]string{}, true
		}
		return a.in.Headers, true
	case "body":
		if !a.read {
			a.read = true
			a.body, _ = parse(a.in.Body) // what is not JSON is null
		}
		return a.body, true
	}
	return nil, false
}

// Parent implements [cel.Activation].
func (*activation) Parent() cel.Activation { return nil }

// sizes tell the estimate of costs nothing that it does not see itself: of a
// payload, anything is possible, and the smallest cost is what counts.
type sizes struct{}

// EstimateCallCost implements [cost.Estimator].
func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// EstimateSize implements [cost.Estimator].
func (sizes) EstimateSize(cost.AstNode) *cost.SizeEstimate { return nil }
