package store

import (
	"regexp"
	"strings"
	"testing"
)

func TestLandedStatementsAreNeverEdited(t *testing.T) {
	t.Parallel()
	if err := checkLanded(Statements(), landed); err != nil {
		t.Fatal(err)
	}
}

func TestCheckLandedSeesEveryEdit(t *testing.T) {
	t.Parallel()
	a, b, c := Statement{"1.sql", 0, "A"}, Statement{"1.sql", 1, "B"}, Statement{"2.sql", 0, "C"}
	sums := a.Sum() + "\n" + b.Sum() + "\n"
	for _, tc := range []struct {
		name string
		now  []Statement
		want string // part of the error
	}{
		{"unchanged", []Statement{a, b}, ""},
		{"new one not listed", []Statement{a, b, c}, "append to ddl/landed.sum\n" + c.Sum()},
		{"text edited", []Statement{a, {"1.sql", 1, "B "}}, "edited or moved"},
		{"swapped", []Statement{{"1.sql", 0, "B"}, {"1.sql", 1, "A"}}, "edited or moved"},
		{"file renamed", []Statement{{"0.sql", 0, "A"}, {"0.sql", 1, "B"}}, "edited or moved"},
		{"put between", []Statement{a, c, b}, "edited or moved"},
		{"removed", []Statement{a}, "is gone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := checkLanded(tc.now, sums)
			if tc.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error = %v, want %q", err, tc.want)
			}
		})
	}
}

// Other tools split the files at a semicolon that ends a line.
func TestStatementsSplitTheSameEverywhere(t *testing.T) {
	t.Parallel()
	for _, s := range Statements() {
		if strings.Contains(s.SQL, ";") || strings.Contains(s.SQL, "--") {
			t.Errorf("%s#%d has a semicolon or a comment inside", s.File, s.Index)
		}
		if !regexp.MustCompile(`^(CREATE|ALTER|DROP) `).MatchString(s.SQL) {
			t.Errorf("%s#%d is no statement: %q", s.File, s.Index, s.SQL)
		}
	}
}

// The costs that limit a commit must not be less than what the schema makes of a
// row: its columns, and those of each index entry.
func TestCostsFollowTheSchema(t *testing.T) {
	t.Parallel()
	columns, index := map[string]int{}, map[string]int{}
	primary := map[string]int{"Events": 1, "Payloads": 1, "Deliveries": 2, "Attempts": 4, "EndpointHealth": 2, "Notices": 1, "OrderedKeys": 3}
	for _, s := range Statements() {
		sql := s.SQL
		if m := regexp.MustCompile(`CREATE TABLE (\w+) \(`).FindStringSubmatch(sql); m != nil {
			columns[m[1]] = len(regexp.MustCompile(`(?m)^  \w+ (STRING|BYTES|INT64|FLOAT64|BOOL|TIMESTAMP|ARRAY)`).FindAllString(sql, -1))
			continue
		}
		if m := regexp.MustCompile(`ALTER TABLE (\w+) ADD COLUMN`).FindStringSubmatch(sql); m != nil {
			columns[m[1]]++
			continue
		}
		m := regexp.MustCompile(`INDEX \w+ ON (\w+) \(([^)]*)\)(?:\s+STORING \(([^)]*)\))?`).FindStringSubmatch(sql)
		if m == nil {
			continue
		}
		// The primary key counts once more, whether or not the index names it.
		index[m[1]] += len(strings.Split(m[2], ",")) + primary[m[1]]
		if m[3] != "" {
			index[m[1]] += len(strings.Split(m[3], ","))
		}
	}
	for _, c := range []struct {
		what       string
		have, want int
	}{
		{"costEvent", costEvent, columns["Events"] + index["Events"]},
		{"costPayload", costPayload, columns["Payloads"]},
		{"costDelivery", costDelivery, columns["Deliveries"] + index["Deliveries"]},
		{"costReopen", costReopen, columns["Deliveries"] + 2*index["Deliveries"]},
		{"costOrdered", costOrdered, columns["OrderedKeys"] + index["OrderedKeys"]},
		{"costCancel", costCancel, columns["Deliveries"] + 2*index["Deliveries"] + 8},
		{"costHealth", costHealth, columns["EndpointHealth"] + 2*index["EndpointHealth"]},
		{"costNotice", costNotice, columns["Notices"] + index["Notices"]},
		// The delivery's follower in an order is updated like it, and their key's row.
		{"costRecord", costRecord, columns["Attempts"] + 2*(columns["Deliveries"]+2*index["Deliveries"]) + columns["OrderedKeys"] + 2*index["OrderedKeys"] +
			8 + columns["Endpoints"] + columns["AuditLog"] + columns["EndpointSets"] + costHealth + 2*costNotice},
	} {
		if c.have < c.want {
			t.Errorf("%s is %d, the schema needs %d", c.what, c.have, c.want)
		}
	}
	if maxGroup*costRecord+parkChunk*costReopen > maxMutations || maxGroup*(costEvent+costPayload+costReplay) > maxMutations || cancelChunk*costCancel > maxMutations ||
		reopenChunk*costReopen+8 > maxMutations || releaseChunk*costReopen > maxMutations {
		t.Error("a full group is beyond the limit")
	}
	if chunk := costEvent + costPayload + costReplay + maxChunk*costDelivery; chunk > maxMutations {
		t.Errorf("a full chunk counts %d", chunk)
	}
}

func TestSchemaLoads(t *testing.T) {
	t.Parallel()
	f := newFixture(t, Options{})
	if err := f.Ping(f.ctx); err != nil {
		t.Fatal(err)
	}
}
