/* A library whose symbols are stripped: its classes are known by their type_info only, its variables by their section. */
namespace plugin {

struct Shape {
	virtual ~Shape() {}
	int width = 0;
};

struct Widget : Shape {
	Widget *next = nullptr;
};

}

static plugin::Widget *first;

static __attribute__((noinline)) plugin::Widget *make_widget()
{
	return new plugin::Widget;
}

extern "C" __attribute__((visibility("default"))) void make_widgets(int count)
{
	for (int number = 0; number < count; number++) {
		plugin::Widget *widget = make_widget();
		widget->next = first;
		first = widget;
	}
}
