package expr_test

import (
	"context"
	"fmt"
	"time"

	"github.com/sealpost/sealpost/internal/expr"
)

// An event named by its object and its type: order-paid and order-shipped of one
// order are two events.
func ExampleProgram_String() {
	p, err := expr.Compile(`type + "/" + string(body.order.id)`, expr.String)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.String(context.Background(), expr.Input{Type: "order-paid", Body: []byte(`{"order": {"id": 9007199254740993}}`)}))
	fmt.Println(p.String(context.Background(), expr.Input{Type: "order-paid", Body: []byte(`{"order": {}}`)}))
	// Output:
	// order-paid/9007199254740993 <nil>
	//  evaluate expression: no such key: id
}

// A filter over the payload and the headers.
func ExampleProgram_Bool() {
	p, err := expr.Compile(`body.amount >= 1000 && body.?customer.?country.orValue("") in ["DE", "AT"] && headers["x-test"] != "1"`, expr.Bool)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, body := range []string{`{"amount": 1999.5, "customer": {"country": "AT"}}`, `{"amount": 1999}`, `{"amount": 5}`} {
		fmt.Println(p.Bool(context.Background(), expr.Input{Body: []byte(body), Headers: map[string]string{"x-test": "0"}, Time: time.Now()}))
	}
	// Output:
	// true <nil>
	// false <nil>
	// false <nil>
}

func ExampleCompile() {
	for _, text := range []string{`bdy.id`, "type +\n  id ==", `size(id)`, `id.matches("(")`} {
		_, err := expr.Compile(text, expr.String)
		fmt.Printf("%.60s\n", err)
	}
	// Output:
	// line 1, column 1: undeclared reference to 'bdy' (did you mea
	// line 2, column 8: Syntax error: mismatched input '<EOF>' exp
	// line 1, column 1: the expression gives a int, a string is wa
	// line 1, column 12: invalid matches argument
}
