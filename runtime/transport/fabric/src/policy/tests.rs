//! Properties of the policy, over tables and messages of all kinds.

use proptest::prelude::*;

use super::*;

fn costs() -> impl Strategy<Value = Costs> {
    let point = (0usize..5, 0usize..16, 1.0f64..1e7);
    let points = proptest::collection::vec(point, 0..40);
    (points, 0.0f64..1e3, 0.0f64..2.0, 0.0f64..1e4, 4096usize..(8 << 20)).prop_map(
        |(points, pack_segment, pack_byte, gather_segment, piece)| {
            let mut costs = Costs::empty("any");
            for (mechanism, power, nanoseconds) in points {
                costs.add(Mechanism::ALL[mechanism], 64 << power, nanoseconds);
            }
            (costs.pack_segment, costs.pack_byte) = (pack_segment, pack_byte);
            (costs.gather_segment, costs.piece) = (gather_segment, piece);
            costs
        },
    )
}

fn shape() -> impl Strategy<Value = MessageShape> {
    (56usize..4096, 0usize..(16 << 20), 0usize..600).prop_map(|(head, bulk, segments)| {
        MessageShape { head, bulk, segments: segments.min(bulk) }
    })
}

fn room() -> impl Strategy<Value = MechanismSizes> {
    (0usize..8192, 4096usize..32768, 0usize..131_072, 1usize..256).prop_map(
        |(inline, eager, fast, segments)| MechanismSizes { inline, eager, fast, segments },
    )
}

fn forced() -> impl Strategy<Value = PolicyOverride> {
    (proptest::option::of(0usize..5), proptest::option::of(any::<bool>())).prop_map(|(m, l)| {
        let layout = l.map(|pack| if pack { SegmentLayout::Pack } else { SegmentLayout::Gather });
        PolicyOverride { mechanism: m.map(|m| Mechanism::ALL[m]), layout }
    })
}

proptest! {
    #[test]
    fn a_choice_always_has_room(costs in costs(), shape in shape(), room in room(), forced in forced()) {
        let plan = Policy { costs, forced }.choose(shape, room);
        let total = shape.head + shape.bulk;
        match plan.mechanism {
            Mechanism::Inline => prop_assert!(total <= room.inline),
            Mechanism::Eager => prop_assert!(total <= room.eager || shape.bulk == 0),
            Mechanism::Fast => prop_assert!(total <= room.fast),
            Mechanism::Read | Mechanism::Write => prop_assert!(shape.bulk > 0),
        }
        if plan.layout == SegmentLayout::Gather {
            prop_assert!(shape.segments <= room.segments);
        }
    }

    #[test]
    fn no_other_choice_with_room_is_cheaper(costs in costs(), mut shape in shape(), room in room()) {
        shape.segments = 1;
        let policy = Policy::new(costs);
        let chosen = policy.choose(shape, room).mechanism;
        for other in Mechanism::ALL {
            let forced = PolicyOverride { mechanism: Some(other), layout: None };
            let taken = Policy { forced, ..policy.clone() }.choose(shape, room).mechanism;
            let total = shape.head + shape.bulk;
            prop_assert!(policy.costs.of(chosen, total) <= policy.costs.of(taken, total));
        }
    }

    #[test]
    fn at_equal_costs_the_less_loaded_end_moves_the_data(
        bulk in 1usize..(16 << 20), receiver in 0u32..32, sender in 0u32..32,
    ) {
        let mut costs = Costs::empty("equal");
        for mechanism in [Mechanism::Read, Mechanism::Write] {
            costs.add(mechanism, 64, 1000.0);
            costs.add(mechanism, 1 << 20, 100_000.0);
        }
        let policy = Policy::new(costs);
        let loads = Loads {
            receiver, sender, receiver_is_heavy_server: false, sender_is_heavy_server: false,
        };
        let wanted = if receiver < sender { Mechanism::Read } else { Mechanism::Write };
        prop_assert_eq!(policy.direction(bulk, loads), wanted);
        // Whatever the loads: of a heavy server and a client, the client works.
        let heavy = Loads { receiver_is_heavy_server: true, ..loads };
        prop_assert_eq!(policy.direction(bulk, heavy), Mechanism::Write);
        let heavy = Loads { sender_is_heavy_server: true, ..loads };
        prop_assert_eq!(policy.direction(bulk, heavy), Mechanism::Read);
    }

    #[test]
    fn pieces_cover_a_bulk_and_leave_at_least_two_of_a_large_one(
        costs in costs(), bulk in 1usize..(64 << 20),
    ) {
        let policy = Policy::new(costs);
        let piece = policy.piece(bulk);
        prop_assert!(piece > 0 && piece <= bulk && piece <= policy.costs.piece);
        prop_assert!(bulk <= policy.costs.piece || bulk.div_ceil(piece) >= 2);
    }

    #[test]
    fn a_table_comes_back_from_its_text(costs in costs()) {
        let text = costs.to_text();
        let again = Costs::from_text(&text).unwrap();
        prop_assert_eq!(again.to_text(), text);
    }

    #[test]
    fn any_text_is_a_table_or_an_error(text in "(mdfs-fabric-costs 1\n)?([a-z-]{0,12} [0-9. na]{0,9}\n){0,5}") {
        if let Ok(costs) = Costs::from_text(&text) {
            prop_assert!(costs.of(Mechanism::Eager, 100) >= 0.0);
        }
    }
}

#[test]
fn a_cost_lies_between_its_points_and_goes_on_past_the_last() {
    let mut costs = Costs::empty("test");
    costs.add(Mechanism::Eager, 2000, 300.0);
    costs.add(Mechanism::Eager, 1000, 200.0);
    let of = |bytes| costs.of(Mechanism::Eager, bytes);
    let rounded = [10, 1000, 1500, 2000, 3000].map(|bytes| format!("{:.0}", of(bytes)));
    assert_eq!(rounded, ["200", "200", "250", "300", "400"]);
    assert!(costs.of(Mechanism::Read, 1) > 1e100);
}

#[test]
fn short_segments_are_packed_and_long_ones_gathered() {
    let policy = Policy::default();
    let room = MechanismSizes { inline: 0, eager: 4096, fast: 0, segments: 128 };
    let layout = |segment: usize| {
        let shape = MessageShape { head: 60, bulk: segment * 128, segments: 128 };
        policy.choose(shape, room).layout
    };
    assert_eq!([128, 8192].map(layout), [SegmentLayout::Pack, SegmentLayout::Gather]);
    let shape = MessageShape { head: 60, bulk: 1 << 20, segments: 129 };
    assert_eq!(
        policy.choose(shape, room).layout,
        SegmentLayout::Pack,
        "more than a frame describes"
    );
}
