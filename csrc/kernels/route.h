// Ways to compute one thing, in order of preference: a row each.
#pragma once

#include <c10/util/Exception.h>

#include <cstddef>
#include <string>

#include "kernels/route_device.h"
#include "runtime/plan_log.h"

namespace anymps::kernels {

// Problem: numbers that say what is to be done, so that tests can ask for any device. Call: its tensors.
template <class Problem, class Call>
struct Route {
    const char* name;
    bool (*supports)(const Problem&, const RouteDevice&);
    void (*launch)(const Problem&, Call&);
};

// Of a table's last row.
template <class Problem>
bool always(const Problem&, const RouteDevice&) {
    return true;
}

// The first row that supports the problem; one of them must. Rows have a name and supports(), as Route.
template <class Row, size_t kCount, class Problem>
const Row& first_route(const Row (&rows)[kCount], const Problem& problem, const RouteDevice& device) {
    for (const Row& row : rows)
        if (row.supports(problem, device)) return row;
    TORCH_INTERNAL_ASSERT(false, "no route for ", to_text(problem));
}

// The same on the current device. op: for ANYMPS_LOG=plan, with the problem's to_text() behind it.
template <class Row, size_t kCount, class Problem>
const Row& choose(const char* op, const Row (&rows)[kCount], const Problem& problem) {
    const Row& row = first_route(rows, problem, route_device());
    if (runtime::logs_plans()) [[unlikely]]
        runtime::log_plan(op, to_text(problem) + ": " + row.name);
    return row;
}

template <class Problem, class Call, size_t kCount>
void launch_first(const char* op, const Route<Problem, Call> (&routes)[kCount], const Problem& problem,
                  Call& call) {
    choose(op, routes, problem).launch(problem, call);
}

}  // namespace anymps::kernels
